"""Settings: one table everywhere, early and readable refusal."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import fedproto_app
from fedproto_app.errors import SettingsError
from fedproto_app.settings import Settings, flat_settings, settings_from

ROOT = Path(__file__).parents[1]
IMAGES = {"task": "classification", "method": "gldp", "keep": "last"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_pyproject_lists_every_setting_with_its_default() -> None:
    listed = PYPROJECT["tool"]["flwr"]["app"]["config"]
    assert flat_settings(settings_from(listed)) == flat_settings(Settings())
    assert settings_from(listed).model_dump(by_alias=True) == listed


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
    ("config", "named"),
    [
        ({"roundz": 3}, ["roundz", "unknown", "rounds"]),
        ({"fuels.tau": 0.1}, ["fuels.tau", "unknown", "temperature"]),
        ({"rounds": 0}, ["rounds = 0", "greater than or equal to 1"]),
        ({"rounds": "many"}, ["rounds = 'many'", "integer"]),
        ({"fuels.beta": -1.0}, ["fuels.beta = -1.0", "greater than or equal to 0"]),
        ({"fuels.beta": 101.0}, ["fuels.beta = 101.0", "0 ... 100"]),
        ({"fuels.temperature": float("nan")}, ["fuels.temperature", "finite"]),
        ({"method": "fedsgd"}, ["method = 'fedsgd'", "'fuels'", "'fedproto'"]),
        ({"data.train-share": 0.9, "data.validation-share": 0.1}, ["train-share", "below 1"]),
        ({"model.representation-dim": 7}, ["model.representation-dim = 7", "multiple of 2"]),
        ({"output.name": "../elsewhere"}, ["output.name = '../elsewhere'", "pattern"]),
        ({"fuels": 3}, ["fuels = 3", "table"]),
        ({"rounds.x": 3}, ["rounds", "integer"]),
        ({"rounds": 3, "rounds.x": 3}, ["rounds.x", "not a table"]),
        ({"fuels.inter": 1}, ["fuels.inter = 1", "boolean"]),
        ({"method": "gldp"}, ["method = 'gldp'", "task = 'classification' only", "fuels, solo"]),
        ({**IMAGES, "method": "fuels"}, ["method = 'fuels'", "gldp, solo, fedavg"]),
        ({**IMAGES, "rounds": 4}, ["rounds = 4", "data.partition.stages = 5"]),
        ({**IMAGES, "keep": "best-validation"}, ["keep = 'best-validation'", "stages = 5"]),
        ({**IMAGES, "patience": 3}, ["patience = 3", "patience = 0"]),
        (
            {**IMAGES, "data.partition.validation-share": 0.0, "patience": 3},
            ["data.partition.validation-share = 0", "keep = 'last'"],
        ),
        ({"data.partition.imbalance-factor": 0.5}, ["imbalance-factor = 0.5", "greater than or"]),
        ({"data.partition.minimum-stages": 6}, ["minimum-stages = 6", "stages = 5"]),
        ({"gldp.balance": 1.5}, ["gldp.balance = 1.5", "less than or equal to 1"]),
        ({"gldp.inference": "vote"}, ["gldp.inference = 'vote'", "global-prototypes"]),
    ],
)
def test_faults_name_key_value_and_what_is_allowed(
    config: dict[str, object], named: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(config)
    message = str(caught.value)
    assert "\n" not in message
    for part in named:
        assert part in message


def test_a_beta_over_100_is_fine_as_an_absolute_threshold() -> None:
    assert settings_from({"fuels.threshold": "absolute", "fuels.beta": 101.0}).fuels.beta == 101.0


def test_a_sources_own_stages_are_not_judged_by_the_settings() -> None:
    changes = {"data.partition.scheme": "given", "keep": "best-validation", "rounds": 1}
    assert settings_from({**IMAGES, **changes}).keep == "best-validation"


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.toml")), ids=lambda f: f.stem)
def test_the_configuration_files_are_valid(file: Path) -> None:
    settings_from(tomllib.loads(file.read_text()))


def test_whole_numbers_are_accepted_where_fractions_are() -> None:
    assert settings_from({"fuels.beta": 50, "participation": 1}).participation == 1.0


def test_the_settings_page_explains_every_key() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    missing = [key for key in flat_settings(Settings()) if f"`{key}`" not in page]
    assert not missing
