"""The app that runs the installed package: Flower accepts it, with every setting."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import flatten_dict, get_fab_config, get_fused_config_from_dir

from fedproto_app.core.methods import METHODS
from fedproto_app.ops.flower_app import write_app
from fedproto_app.settings import Settings, flat_settings, flower_config, settings_from

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_takes_it_and_finds_the_packages_apps(app: Path) -> None:
    config, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []
    assert get_fab_config(build_fab_from_disk(app)) == config
    assert sorted(path.name for path in app.iterdir()) == ["LICENSE", "pyproject.toml"]


def test_it_is_the_app_of_the_repository_without_its_code(app: Path) -> None:
    written = tomllib.loads((app / "pyproject.toml").read_text())
    assert written["tool"]["flwr"] == PYPROJECT["tool"]["flwr"]
    for key in ("name", "version", "license"):
        assert written["project"][key] == PYPROJECT["project"][key]
    (flower,) = written["project"]["dependencies"]
    assert flower in PYPROJECT["project"]["dependencies"]


def test_a_run_can_change_every_setting(app: Path) -> None:
    settings = flat_settings(Settings(method=next(iter(METHODS)), seed=3))
    config = flatten_dict(flower_config(settings_from(settings)))
    assert config.keys() == flatten_dict(PYPROJECT["tool"]["flwr"]["app"]["config"]).keys()
    fused = get_fused_config_from_dir(app, config)
    assert settings_from(fused) == settings_from(settings)
    assert settings_from(flower_config(settings_from(fused))).seed == 3
