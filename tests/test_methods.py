"""Methods as records: the table, and methods from outside the app."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.common.config import flatten_dict, get_fused_config_from_dir

from fedproto_app.errors import SettingsError
from fedproto_app.halves import ENCODER_FIRST, ENCODER_LEARNER, make_learner
from fedproto_app.invariants import SmallRuns, cohorts_equal_their_clients
from fedproto_app.methods import (
    METHODS,
    SEQUENCE_TASKS,
    Method,
    for_task,
    method_named,
    methods_of,
    require_fit,
)
from fedproto_app.report.artefacts import settings_digest
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.resume import require_resumable
from fedproto_app.settings import (
    TASK_NAMES,
    Section,
    Settings,
    default_run_name,
    flat_settings,
    flower_config,
    settings_from,
)
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.users_code import load
from tests.local_grid import run_locally, small_settings, synthetic_nodes

ROOT = Path(__file__).parents[1]

# A method in a file of its own: Solo, whose loss is multiplied by a number of its settings.
LOUD = """
from fedproto_app.learners.solo import SoloLearner
from fedproto_app.methods import Method
from fedproto_app.settings import Section, setting


class LoudSettings(Section):
    loudness: float = setting(2.0, "what the loss is multiplied by")
    inner_steps: int = setting(1, "no effect")


class LoudLearner(SoloLearner):
    section: LoudSettings

    def loss(self, parameters, batch, context):
        terms = super().loss(parameters, batch, context)
        return {"prediction": self.section.loudness * terms["prediction"]}


METHOD = Method(
    name="loud",
    strategy="fedproto_app.strategies.solo:SoloStrategy",
    learner=f"{__name__}:LoudLearner",
    settings=LoudSettings,
    tasks=("forecasting",),
)
BARE = Method("bare", METHOD.strategy, "fedproto_app.learners.solo:SoloLearner")
NO_SECTION = Method("none", METHOD.strategy, METHOD.learner, settings=dict)
TAKEN = Method("fuels", METHOD.strategy, METHOD.learner)
def check(settings):
    if settings.rounds > 99:
        raise ValueError(f"rounds = {settings.rounds}: too loud")


WARY = Method("wary", METHOD.strategy, METHOD.learner, LoudSettings, check=check)
LOST = Method("lost", METHOD.strategy, f"{__name__}:Learner")
NUMBER = 3
"""
LOUD_METHOD = "loud_method:METHOD"


class Loudness(Section):
    """The section that the settings of the app would have."""

    loudness: float = 2.0


# What docs/methods.md calls tasks.
WORKS_ON = {
    "all": TASK_NAMES,
    "series": ("forecasting",),
    "in a simulation": (),
    "images": ("classification",),
    "sequences": SEQUENCE_TASKS,
    "sequences of classes": ("sequence-classification",),
}


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's own modules on the path of this process."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "loud_method.py").write_text(LOUD)
    (folder / "broken_method.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("loud_method", "broken_method"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_both_halves_of_every_method_are_there(method: Method) -> None:
    for task in TASK_NAMES:
        for part in (method.strategy, method.learner):
            if method.works_with(task):
                assert isinstance(load(for_task(part, task), "it"), type)
    for target in (ENCODER_LEARNER, ENCODER_FIRST):
        assert isinstance(load(target, "it"), type)


def test_the_page_of_the_methods_has_every_one_with_its_tasks() -> None:
    page = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
    told = {}
    for first, second in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", page, re.MULTILINE):
        tasks = [WORKS_ON[one] for one in second.split(", ")]
        for name in re.findall(r"`([^`]+)`", first):
            told[name] = {task for some in tasks for task in some}
    assert told == {name: set(method.tasks or TASK_NAMES) for name, method in METHODS.items()}


@pytest.mark.parametrize("part", ["strategy", "learner", "model"])
def test_a_task_that_a_part_of_a_method_lacks_is_refused(part: str) -> None:
    method = replace(METHODS["solo"], **{part: {"classification": "fedproto_app.nowhere:It"}})
    with pytest.raises(SettingsError, match="has parts for task = 'classification' only"):
        require_fit(method, Settings())


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_methods_section_is_the_table_of_its_name(method: Method) -> None:
    settings = Settings()
    shared = {"ifca": settings.fed_react, "flsc": settings.fed_react, "solo": None, "fedavg": None}
    table = getattr(settings, method.name.replace("-", "_"), None)
    wanted = shared.get(method.name, table)
    section = method.section(settings)
    assert (wanted or settings.own).model_dump().items() <= section.model_dump().items()


def test_clients_choose_one_cluster_or_as_many_as_they_overlap() -> None:
    settings = settings_from({"fed-react.clusters": 7, "flsc.overlap": 4})
    assert METHODS["ifca"].section(settings).overlap == 1
    assert METHODS["flsc"].section(settings).overlap == 4
    assert METHODS["flsc"].section(settings).clusters == 7


def test_a_method_from_outside_runs_and_its_own_number_counts(tmp_path: Path) -> None:
    """Its loss is three times Solo's in the first epoch; artefacts have its name."""
    losses = {}
    for name, method in {
        "solo": {"method": "solo"},
        "loud": {"method": LOUD_METHOD, "own.loudness": 3.0},
    }.items():
        few = {"rounds": 2, "optimizer.learning-rate": 1e-12, "output.name": name}
        settings = small_settings(tmp_path, **method, **few)
        folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / name))
        rounds = read_rounds(folder.path)
        assert len(rounds) == 2
        losses[name] = rounds[0]["loss"]["prediction"]
        assert json.loads((folder.path / "summary.json").read_text())["method"] == name
    assert losses["loud"] == pytest.approx(3 * losses["solo"], rel=1e-5)
    stored = tomllib.loads((tmp_path / "runs" / "loud" / "settings.toml").read_text())
    assert stored["own"] == {"loudness": 3.0, "inner-steps": 1}


def test_a_row_of_the_table_is_all_that_a_method_of_the_app_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`methods.py` is the file that is touched; with numbers of its own the settings, too."""
    halves = method_named(LOUD_METHOD)
    row = replace(halves, name="built-in", settings=None, section=lambda settings: Loudness())
    monkeypatch.setitem(METHODS, row.name, row)
    assert row.name in methods_of("forecasting")
    runs = SmallRuns("forecasting", row.name, tmp_path)
    assert cohorts_equal_their_clients(runs).held
    assert read_run(runs.run("one-node", 1)).summary["method"] == "built-in"


def test_its_own_table_survives_every_way_that_settings_take(tmp_path: Path) -> None:
    settings = settings_from({"method": LOUD_METHOD, "own.loudness": 3.0, "own": ""})
    assert settings.own.model_dump() == {"loudness": 3.0, "inner_steps": 1}
    assert flat_settings(settings)["own.loudness"] == 3.0
    assert settings_from(flat_settings(settings)) == settings
    of_flower = flower_config(settings)
    assert tomllib.loads(of_flower["own"]) == {"loudness": 3.0, "inner-steps": 1}
    assert settings_from(of_flower) == settings
    assert settings_from({"method": LOUD_METHOD, "own": {"loudness": 3}}) == settings
    assert settings_from({"method": LOUD_METHOD, "own": "loudness = 3.0"}) == settings
    assert hash(settings_from(of_flower)) == hash(settings)
    assert default_run_name(settings).startswith("loud-synthetic-traffic-s0-")


def test_flower_takes_its_table_for_its_keys_are_the_apps() -> None:
    settings = settings_from({"method": LOUD_METHOD, "own.loudness": 3.0})
    sent = flatten_dict(flower_config(settings))
    assert settings_from(get_fused_config_from_dir(ROOT, sent)) == settings


def test_runs_with_other_numbers_of_its_own_are_other_runs(tmp_path: Path) -> None:
    slow = settings_from({"method": LOUD_METHOD})
    fast = settings_from({"method": LOUD_METHOD, "own.inner-steps": 2})
    assert slow != fast
    assert settings_digest(slow) != settings_digest(fast)
    (tmp_path / "settings.toml").write_text(tomli_w.dumps(slow.model_dump(by_alias=True)))
    require_resumable(slow, tmp_path)
    with pytest.raises(SettingsError, match=r"own\.inner-steps = 2, was 1$"):
        require_resumable(fast, tmp_path)


def test_without_a_method_from_outside_nothing_of_it_is_told() -> None:
    assert "own" not in Settings().model_dump()
    assert "own" not in flower_config(Settings())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"method": "no_module:METHOD"}, "No module named 'no_module'"),
        ({"method": "loud_method:OTHER"}, "module 'loud_method' has no attribute 'OTHER'"),
        ({"method": "loud_method:NUMBER"}, "is a int, expected a fedproto_app.methods.Method"),
        ({"method": "loud_method:LoudLearner"}, "expected a fedproto_app.methods.Method"),
        ({"method": "loud_method:"}, "expected package.module:NAME"),
        ({"method": "broken_method:METHOD"}, "cannot be imported: ZeroDivisionError: division"),
        ({"method": "loud_method:TAKEN"}, "name = 'fuels' is that of a method of the app"),
        ({"method": "loud_method:NO_SECTION"}, "expected a class derived from"),
        ({"method": "loud_method:BARE", "own.x": 1}, "own.x: unknown setting"),
        ({"method": LOUD_METHOD, "own.loudnes": 1}, "own.loudnes: unknown setting; did you mean "),
        ({"method": LOUD_METHOD, "own.loudnes": 1}, "own.loudness? known in [own]: inner-steps, "),
        ({"method": "loud_method:WARY", "rounds": 100}, "rounds = 100: too loud"),
        ({"method": LOUD_METHOD, "own.loudness": "x"}, "own.loudness = 'x': input should be a val"),
        (
            {"method": LOUD_METHOD, "task": "sequence-regression"},
            "method = 'loud_method:METHOD': works with task = 'forecasting' only",
        ),
    ],
)
def test_what_is_wrong_with_a_method_from_outside_is_told(
    config: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(config)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_not_there_is_told_with_the_methods_name() -> None:
    settings = settings_from({"method": "loud_method:LOST"})
    with pytest.raises(SettingsError, match="lost's learner = 'loud_method:Learner': module"):
        make_learner(settings, ForecastingTask(settings))
    assert method_named("loud_method:LOST").works_with("classification")
