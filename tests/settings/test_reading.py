"""Settings: one table everywhere, early and readable refusal."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import flatten_dict

import fedproto_app
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import METHODS, methods_of
from fedproto_app.settings import TASK_NAMES, Settings, flat_settings, settings_from
from fedproto_app.settings.reading import flags, flower_config, parsed, unused_settings, written
from fedproto_app.trust.privacy_loss import privacy_plan

ROOT = Path(__file__).parents[2]
IMAGES = {"task": "classification", "method": "gldp", "keep": "last"}
SEQUENCES = {"task": "sequence-classification", "method": "fed-react"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_pyproject_lists_every_setting_with_its_default() -> None:
    listed = PYPROJECT["tool"]["flwr"]["app"]["config"]
    assert flat_settings(settings_from(listed)) == flat_settings(Settings())
    assert flatten_dict(flower_config(Settings())).keys() == flatten_dict(listed).keys()
    assert len(flatten_dict(listed)) <= 140


def test_version_is_the_same_in_pyproject_and_package() -> None:
    assert PYPROJECT["project"]["version"] == fedproto_app.__version__


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_config_file_is_valid(path: Path) -> None:
    settings_from(tomllib.loads(path.read_text()))


def test_flat_and_nested_are_the_same() -> None:
    flat = settings_from({"fuels.beta": 30.0, "rounds": 3, "data.synthetic.clients": 5})
    nested = settings_from({"fuels": {"beta": 30.0}, "rounds": 3, "data": {"synthetic.clients": 5}})
    assert flat == nested
    assert settings_from(flat_settings(flat)) == flat


@pytest.mark.parametrize(
    ("config", "fragments"),
    [
        ({"roundz": 3}, ["roundz: unknown setting; did you mean rounds? known: aggregation, "]),
        ({"fuels.bta": 3.0}, ["fuels.bta: unknown setting; did you mean fuels.beta?"]),
        ({"fuels.tau": 0.1}, ["did you mean fuels.temperature? known in [fuels]: augmentation"]),
        ({"fedprox.mu": 0.1}, ["did you mean fedprox.proximal-mu? known in [fedprox]: proximal"]),
        ({"data-horizon": 3}, ["data-horizon: unknown setting; did you mean data.horizon? "]),
        ({"learning-rate": 0.1}, ["learning-rate: ", "did you mean optimizer.learning-rate? "]),
        ({"data.cluster.clients": 4}, ["data.cluster: unknown setting; did you mean data.cluster"]),
        (
            {"nodes.q": 1},
            ["nodes.q: unknown setting; known in [nodes]: bind-names, enough, maximum-clients, "],
        ),
        (
            {"nodes.enough": 0.4},
            ["nodes.enough = 0.4: then more", "than nodes.maximum-failed-share = 0.5 allows"],
        ),
        (
            {"nodes.names": "office,depot", "nodes.minimum": 3},
            ["nodes.minimum = 3: more than the 2 of nodes.names = 'office,depot'"],
        ),
        (
            {"nodes.names": ["a", "b"], "method": "fedavg", "aggregation.secure": True},
            ["nodes.names = 'a,b': a masked sum needs aggregation.secure-minimum = 3 nodes"],
        ),
        ({"data.backtest": "6/5"}, ["data.backtest = '6/5'", "the number of windows, such as 2/5"]),
        ({"data.lags": "7,x"}, ["data.lags = '7,x'", "auto, or whole numbers above 0 between"]),
        ({"data.lags": "48,2"}, ["data.lags = '48,2': 2 must be above data.close-window = 3"]),
        ({"data.lags": 7, "data.horizon": 8}, ["7 must be at least 8, the smaller of data.hor"]),
        ({"data.choice": 1}, ["data.choice: unknown setting; known in [data]: backtest, calendar"]),
        ({"task": "clasification"}, ["task = 'clasification'", "did you mean 'classification' or"]),
        ({"method": "fedprx"}, ["method = 'fedprx': unknown method; did you mean 'fedprox' or "]),
        ({"method-settings": "rate = 0.1"}, ["fuels.rate: unknown setting"]),
        ({"method-settings": "rate"}, ["method-settings = 'rate': not a table in TOML: "]),
        ({"method-settings": 3}, ["method-settings = 3: must be a table in TOML"]),
        ({"fules.beta": 3}, ["fules: unknown setting; did you mean fuels or "]),
        ({"temperature": 3}, ["temperature: unknown setting; did you mean fuels.temperature?"]),
        ({"method": 3}, ["method = 3: must be a text"]),
        ({"rounds": 0}, ["rounds = 0", "greater than or equal to 1"]),
        ({"rounds": "many"}, ["rounds = 'many'", "integer"]),
        ({"fuels.beta": 101.0}, ["fuels.beta = 101.0", "0 ... 100"]),
        ({"fuels.temperature": float("nan")}, ["fuels.temperature", "finite"]),
        ({"data.train-share": 0.9, "data.validation-share": 0.1}, ["train-share", "below 1"]),
        ({"model.representation-dim": 7}, ["model.representation-dim = 7", "multiple of 2"]),
        ({"output.name": "../elsewhere"}, ["output.name = '../elsewhere'", "pattern"]),
        ({"fuels": 3}, ["fuels = 3", "table"]),
        ({"rounds.x": 3}, ["rounds", "integer"]),
        ({"rounds": 3, "rounds.x": 3}, ["rounds.x", "not a table"]),
        ({"fuels.inter": 1}, ["fuels.inter = 1", "boolean"]),
        ({"method": "gldp"}, ["method = 'gldp'", "task = 'classification' only", "fuels, kindred"]),
        ({**IMAGES, "method": "fuels"}, ["method = 'fuels'", "analytic, census, fedavg"]),
        ({**IMAGES, "rounds": 4}, ["rounds = 4", "data.partition.stages = 5"]),
        ({**IMAGES, "keep": "best-validation"}, ["keep = 'best-validation'", "stages = 5"]),
        ({**IMAGES, "patience": 3}, ["patience = 3", "patience = 0"]),
        (
            {**IMAGES, "data.partition.validation-share": 0.0, "patience": 3},
            ["data.partition.validation-share = 0", "keep = 'last'"],
        ),
        ({"gldp.inference": "vote"}, ["gldp.inference = 'vote'", "global-prototypes"]),
        (
            {"method": "fed-react"},
            ["method = 'fed-react'", "'sequence-classification' or 'sequence-regression' only"],
        ),
        ({**SEQUENCES, "method": "fedda"}, ["task = 'forecasting' only", "analytic, fed-react"]),
        ({**SEQUENCES, "task": "sequences"}, ["task = 'sequences'", "'sequence-regression'"]),
        (
            {**SEQUENCES, "method": "ifca", "fed-react.clusters": 0},
            ["fed-react.clusters = 0", "method = 'ifca'"],
        ),
        (
            {**SEQUENCES, "method": "flsc", "fed-react.overlap": 4},
            ["fed-react.overlap = 4", "more than fed-react.clusters = 3"],
        ),
        *(
            (
                {**settings, "method": "analytic", "analytic.sharing": "clustered"},
                ["analytic.sharing = 'clustered'", why],
            )
            for settings, why in (
                ({}, "has no classes; method = 'kindred'"),
                ({**SEQUENCES, "aggregation.rule": "median"}, "gives only the totals"),
                (
                    {**SEQUENCES, "privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0},
                    "hides clusters",
                ),
            )
        ),
        *(
            (
                {"keep": "last", **settings, "method": "analytic", "analytic.guess-rounds": 2},
                ["analytic.guess-rounds = 2", why],
            )
            for settings, why in (
                ({}, "task = 'forecasting' has no samples without a label; set 0"),
                ({**SEQUENCES, "evaluate-every": 2}, "evaluate-every = 2: it must be 1"),
                ({**SEQUENCES, "keep": "best-validation"}, "keep = 'best-validation': set 'last'"),
                ({**SEQUENCES, "patience": 3}, "patience = 3: set 0"),
                ({**SEQUENCES, "aggregation.secure": True}, "could be found by subtraction; set 0"),
                (
                    {**SEQUENCES, "privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0},
                    "counts each sequence once; set 0",
                ),
            )
        ),
        *(
            (
                {**SEQUENCES, "fed-react.forgetting": wrong},
                [f"fed-react.forgetting = {wrong!r}: must be 'adaptive', 'toolbox'", "0 to 1"],
            )
            for wrong in (1.5, -0.1, "adaptiv", True, float("nan"))
        ),
        (
            {"data.clusters.clusters": 11},
            ["data.clusters.clusters = 11", "more than data.clusters.clients = 10"],
        ),
        (
            {"data.clusters.unlabelled": True},
            ["data.clusters.unlabelled = true", "data.clusters.labels = 0"],
        ),
        ({"encoder.path": 3}, ["encoder.path = 3", "string"]),
        ({"fed-react.theta": 1}, ["fed-react.theta", "unknown", "em-iterations"]),
        ({"data.test-start": "in June"}, ["data.test-start = 'in June'", "2010-06-01"]),
        ({"data.test-start": "2010-06-01", "data.backtest": "1/3"}, ["not with data.backtest"]),
    ],
)
def test_faults_name_key_value_and_what_is_allowed(
    config: dict[str, object], fragments: list[str]
) -> None:
    """A case for each kind of bound. `test_tables` holds every bound against docs/settings.md."""
    table = next((key.partition(".")[0] for key in config if "." in key), "fuels")
    if table in METHODS and "method" not in config:
        config = {"task": METHODS[table].tasks[:1] and METHODS[table].tasks[0], **config}
        config = {**config, "task": config["task"] or "forecasting", "method": table}
    with pytest.raises(SettingsError) as caught:
        settings_from(config)
    message = str(caught.value)
    assert "\n" not in message
    for part in fragments:
        assert part in message


def test_a_beta_over_100_is_fine_as_an_absolute_threshold() -> None:
    assert (
        settings_from({"fuels.threshold": "absolute", "fuels.beta": 101.0}).method_settings.beta
        == 101.0
    )


@pytest.mark.parametrize(
    ("table", "unused"),
    [
        ({"method": "kindred", "rounds": 60}, ["rounds = 60"]),
        ({"method": "kindred", "rounds": 1, "seed": 3}, []),
        ({"method": "analytic", "optimizer.learning-rate": 0.5, "local-epochs": 7},
         ["optimizer.learning-rate = 0.5", "local-epochs = 7"]),
        ({"method": "fedavg", "rounds": 60, "optimizer.learning-rate": 0.5}, []),
        ({"method": "fedavg", "sequence.batch-size": 3}, ["sequence.batch-size = 3"]),
        ({**SEQUENCES, "sequence.batch-size": 3}, []),
    ],
)  # fmt: skip
def test_settings_without_effect_are_named(table: dict[str, Any], unused: list[str]) -> None:
    assert unused_settings(table, settings_from(table)) == unused


def test_a_wrong_key_of_another_method_is_refused() -> None:
    assert settings_from({"method": "fedavg", "kindred.features": 3})
    with pytest.raises(SettingsError, match=r"kindred\.nope"):
        settings_from({"method": "fedavg", "kindred.nope": 1})


def test_known_columns_do_not_go_with_every_run() -> None:
    columns = {"data.known": "temperature"}
    with pytest.raises(SettingsError, match="its clients see each other's values"):
        settings_from({**columns, "method": "fcgcn"})
    noise = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}
    private = settings_from({**columns, **noise, "method": "fedavg"})
    with pytest.raises(SettingsError, match=r"or send nothing with response\.sharing = 'none'"):
        privacy_plan(private)
    alone = {**columns, **noise, "method": "fedavg", "response.sharing": "none"}
    assert privacy_plan(settings_from(alone))


def test_a_sources_own_stages_are_not_judged_by_the_settings() -> None:
    changes = {"data.partition.scheme": "given", "keep": "best-validation", "rounds": 1}
    assert settings_from({**IMAGES, **changes}).keep == "best-validation"


def test_what_another_method_would_refuse_is_fine() -> None:
    """As many clusters as the silhouette says, and clusters of the source's own."""
    by_silhouette = {**SEQUENCES, "fed-react.clusters": 0, "fed-react.overlap": 9}
    assert settings_from(by_silhouette).method_settings.clusters == 0
    given_clusters = {"data.clusters.scheme": "given", "data.clusters.clusters": 11}
    assert settings_from(given_clusters).data.clusters.clusters == 11


@pytest.mark.parametrize(
    ("changes", "pretraining_rounds"),
    [
        ({}, 10),
        ({"method": "ifca"}, 10),
        ({"method": "flsc", "encoder.rounds": 4}, 4),
        ({"encoder.path": "runs/before"}, 0),
        ({"method": "fedavg"}, 0),
        ({"task": "forecasting", "method": "fuels"}, 0),
    ],
)
def test_a_first_phase_adds_its_rounds(changes: dict[str, object], pretraining_rounds: int) -> None:
    settings = settings_from({**SEQUENCES, "rounds": 30, **changes})
    assert settings.pretraining_rounds == pretraining_rounds
    assert settings.all_rounds == pretraining_rounds + 30


@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_task_takes_just_the_methods_that_are_told(task: str) -> None:
    accepted = []
    for method in METHODS:
        try:
            settings_from({"task": task, "method": method, "keep": "last"})
        except SettingsError as error:
            assert f"method = {method!r}" in str(error)  # noqa: PT017
        else:
            accepted.append(method)
    assert accepted == methods_of(task)


def test_whole_numbers_are_accepted_where_fractions_are() -> None:
    assert settings_from({"fuels.beta": 50, "participation": 1}).participation == 1.0


def test_what_is_known_is_said_once() -> None:
    with pytest.raises(SettingsError) as raised:
        settings_from({"a": 1, "fuels.b": 2, "c": 3, "fuels.d": 2})
    assert str(raised.value).count("known in [fuels]: ") == 1
    assert str(raised.value).count("known: ") == 1
    assert "c: unknown setting" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("my data.csv", "my data.csv"),
        (7, "7"),
        (0.1, "0.1"),
        (False, "false"),
        (["a", "b  c"], '["a", "b  c"]'),
        ({"clients": 3, "of all": ["a"]}, '{"clients" = 3, "of all" = ["a"]}'),
        ('"a  b"', '"\\"a  b\\""'),
        ("[" * 5000, "[" * 5000),
        ("", ""),
        (" a", '" a"'),
        *((text, f'"{text}"') for text in ("2024", "1e3", "true", "0x10", "2024-01-01", "inf")),
        ("'quoted'", "\"'quoted'\""),
        ("a\nb = 1", "a\nb = 1"),
    ],
)
def test_a_value_comes_back_from_its_text(value: Any, text: str) -> None:
    assert written(value) == text
    assert (parsed(text), type(parsed(text))) == (value, type(value))


def test_flags_are_words_of_a_shell() -> None:
    line = flags({"data.path": "2024", "seed": 3, "data.columns": "it's a"})
    assert shlex.split(line) == [
        *("--set", 'data.path="2024"', "--set", "seed=3", "--set", "data.columns=it's a")
    ]
