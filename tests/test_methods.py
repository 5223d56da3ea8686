"""Methods as records: the table, and methods from outside the app."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.common.config import flatten_dict, get_fused_config_from_dir

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.method import SEQUENCE_TASKS, Method
from fedproto_app.core.methods import METHODS, Methods, method_named, methods_of, part_of
from fedproto_app.experiments.invariants import SmallRuns, cohorts_equal_their_clients
from fedproto_app.report.artefacts import settings_digest
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.checkpoint import resumable
from fedproto_app.settings import (
    TASK_NAMES,
    Settings,
    default_run_name,
    flat_settings,
    flower_config,
    settings_from,
)
from fedproto_app.settings.fit import require_fit
from fedproto_app.strategies.fed_react import FedReactSettings
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes

ROOT = Path(__file__).parents[1]

# A method in a file of its own: Solo, whose loss is multiplied by a number of its settings.
LOUD = """
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.core.method import Method
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
BARE = Method("bare", METHOD.strategy, "fedproto_app.strategies.solo:SoloLearner")
NO_SECTION = Method("none", METHOD.strategy, METHOD.learner, settings=dict)
TAKEN = Method("fuels", METHOD.strategy, METHOD.learner)
def check(settings):
    if settings.rounds > 99:
        raise ValueError(f"rounds = {settings.rounds}: too loud")


WARY = Method("wary", METHOD.strategy, METHOD.learner, LoudSettings, check=check)
LOST = Method("lost", METHOD.strategy, f"{__name__}:Learner")
NUMBER = 3
DATA = Method("data", METHOD.strategy, METHOD.learner)
"""
LOUD_METHOD = "loud_method:METHOD"


DECLARES_TWICE = """\
from fedproto_app.core.method import Method
from fedproto_app.core.sends import Sends
from fedproto_app.strategies.solo import SoloLearner, SoloStrategy
class Mine(SoloLearner):
    @classmethod
    def sends(cls, section, sizes):
        return [Sends('a', {'x': ()}), Sends('b', {'x': ()})]
METHOD = Method('x', SoloStrategy, Mine)
"""


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a user's modules on the path of this process."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "loud_method.py").write_text(LOUD)
    (folder / "broken_method.py").write_text("1 / 0\n")
    (folder / "declares_twice.py").write_text(DECLARES_TWICE)
    monkeypatch.syspath_prepend(folder)
    for name in ("loud_method", "broken_method", "declares_twice"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_both_halves_of_every_method_are_there(method: Method) -> None:
    for task in TASK_NAMES:
        for part in ("strategy", "learner"):
            if method.works_with(task):
                assert isinstance(part_of(method, part, task), type)
    if method.pretraining:
        for target in (method.pretraining.learner, method.pretraining.strategy):
            assert isinstance(load(target, "it"), type)


@pytest.mark.parametrize("part", ["strategy", "learner", "model"])
def test_a_task_that_a_part_of_a_method_lacks_is_refused(part: str) -> None:
    method = replace(METHODS["solo"], **{part: {"classification": "fedproto_app.nowhere:It"}})
    with pytest.raises(SettingsError, match="has parts for task = 'classification' only"):
        require_fit(method, Settings())


def test_methods_of_a_package_that_is_not_installed_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = ("fedproto_app.strategies", "fedproto_compared")
    assert "cnfgnn" in METHODS
    monkeypatch.setattr("fedproto_app.core.methods._PACKAGES", (packages[0], "not_installed"))
    assert sorted(Methods()) == sorted(
        name for name in METHODS if not METHODS._modules[name].startswith(packages[1])
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_files_name_and_a_table_its_methods(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.table_name in METHODS
    assert method.table_name not in Settings.tables()


def test_clients_choose_one_cluster_or_as_many_as_they_overlap() -> None:
    table = {"task": SEQUENCE_TASKS[0], "fed-react.clusters": 7, "fed-react.overlap": 4}
    for method, choices in (("ifca", 1), ("flsc", 4)):
        section = settings_from({**table, "method": method}).method_table(FedReactSettings)
        assert (section.choices, section.clusters) == (choices, 7)


def test_a_method_from_outside_runs_with_its_setting(tmp_path: Path) -> None:
    """Its loss is three times Solo's in the first epoch; artefacts have its name."""
    losses = {}
    for name, method in {
        "solo": {"method": "solo"},
        "loud": {"method": LOUD_METHOD, "loud.loudness": 3.0},
    }.items():
        changes = {"rounds": 2, "optimizer.learning-rate": 1e-12, "output.name": name}
        settings = small_settings(tmp_path, **method, **changes)
        folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / name))
        rounds = read_rounds(folder.path)
        assert len(rounds) == 2
        losses[name] = rounds[0]["loss"]["prediction"]
        assert json.loads((folder.path / "summary.json").read_text())["method"] == name
    assert losses["loud"] == pytest.approx(3 * losses["solo"], rel=1e-5)
    stored = tomllib.loads((tmp_path / "runs" / "loud" / "settings.toml").read_text())
    assert stored["loud"] == {"loudness": 3.0, "inner-steps": 1}


def test_a_module_in_the_folder_is_all_that_a_method_of_the_app_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._modules, "loud", "loud_method")
    assert "loud" in methods_of("forecasting")
    runs = SmallRuns("forecasting", "loud", tmp_path)
    assert cohorts_equal_their_clients(runs).held
    assert read_run(runs.run("one-node", 1)).summary["method"] == "loud"
    with pytest.raises(SettingsError, match=r"loud\.loudnes: unknown setting; did you mean"):
        settings_from({"method": "loud", "loud.loudnes": 3.0})


def test_its_own_table_survives_every_way_that_settings_take(tmp_path: Path) -> None:
    settings = settings_from({"method": LOUD_METHOD, "loud.loudness": 3.0, "method-settings": ""})
    assert settings.method_settings.model_dump() == {"loudness": 3.0, "inner_steps": 1}
    assert flat_settings(settings)["loud.loudness"] == 3.0
    assert settings_from(flat_settings(settings)) == settings
    of_flower = flower_config(settings)
    text = tomllib.loads(of_flower["method-settings"])
    assert text.items() >= {"loudness": 3.0, "inner-steps": 1}.items()
    assert sorted(text) == ["encoder", "graph", "inner-steps", "loudness"]
    assert settings_from(of_flower) == settings
    assert settings_from({"method": LOUD_METHOD, "loud": {"loudness": 3}}) == settings
    assert settings_from({"method": LOUD_METHOD, "method-settings": "loudness = 3.0"}) == settings
    assert hash(settings_from(of_flower)) == hash(settings)
    assert default_run_name(settings).startswith("loud-synthetic-traffic-s0-")


def test_flower_takes_its_table_for_its_keys_are_the_apps() -> None:
    settings = settings_from({"method": LOUD_METHOD, "loud.loudness": 3.0})
    config = flatten_dict(flower_config(settings))
    assert settings_from(get_fused_config_from_dir(ROOT, config)) == settings


def test_runs_with_different_settings_of_the_method_differ(tmp_path: Path) -> None:
    slow = settings_from({"method": LOUD_METHOD})
    fast = settings_from({"method": LOUD_METHOD, "loud.inner-steps": 2})
    assert slow != fast
    assert settings_digest(slow) != settings_digest(fast)
    (tmp_path / "settings.toml").write_text(tomli_w.dumps(slow.model_dump(by_alias=True)))
    resumable(slow, tmp_path)
    with pytest.raises(SettingsError, match=r"loud\.inner-steps = 2, was 1$"):
        resumable(fast, tmp_path)


def test_the_tables_of_other_methods_may_be_there_and_are_left_alone() -> None:
    settings = settings_from({"fuels.beta": 30.0, "gldp.balance": 0.7, "kindred.features": 1})
    assert settings == settings_from({"fuels.beta": 30.0})
    assert "gldp" not in settings.model_dump(by_alias=True)


def test_several_settings_of_a_method_stand_on_one_line() -> None:
    text = "temperature = 0.05, negatives = 'similarity', encoder.rounds = 3"
    settings = settings_from({"method-settings": text})
    table = {"fuels.temperature": 0.05, "fuels.negatives": "similarity", "encoder.rounds": 3}
    assert settings == settings_from(table)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "no_module:METHOD"}, "No module named 'no_module'"),
        ({"method": "declares_twice:METHOD"}, "method 'x': declares 'x' in two Sends"),
        ({"method": "loud_method:OTHER"}, "module 'loud_method' has no attribute 'OTHER'"),
        ({"method": "loud_method:NUMBER"}, "is a int, expected a fedproto_app.core.method.Method"),
        ({"method": "loud_method:LoudLearner"}, "expected a fedproto_app.core.method.Method"),
        ({"method": "loud_method:"}, "expected package.module:NAME"),
        ({"method": "broken_method:METHOD"}, "cannot be imported: ZeroDivisionError: division"),
        ({"method": "loud_method:TAKEN"}, "name = 'fuels' is that of a method of the app"),
        ({"method": "loud_method:NO_SECTION"}, "expected a class derived from"),
        ({"method": "loud_method:BARE", "bare.x": 1}, "bare.x: unknown setting"),
        ({"method": LOUD_METHOD, "loud.loudnes": 1}, "loud.loudnes: unknown setting; did you mean"),
        ({"method": LOUD_METHOD, "loud.loudnes": 1}, "loud.loudness? known in [loud]: inner-steps"),
        ({"method": "loud_method:DATA"}, "its table of settings cannot be called 'data'"),
        ({"method": "loud_method:WARY", "rounds": 100}, "rounds = 100: too loud"),
        ({"method": LOUD_METHOD, "loud.loudness": "x"}, "loud.loudness = 'x': input should be a v"),
        (
            {"method": LOUD_METHOD, "task": "sequence-regression"},
            "method = 'loud_method:METHOD': works with task = 'forecasting' only",
        ),
    ],
)
def test_errors_of_a_method_from_outside_are_reported(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_class_is_reported_with_the_methods_name() -> None:
    with pytest.raises(SettingsError, match="lost's learner = 'loud_method:Learner': module"):
        settings_from({"method": "loud_method:LOST"})
    assert method_named("loud_method:LOST").works_with("classification")
