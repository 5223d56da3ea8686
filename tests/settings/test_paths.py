"""A run cannot write or read outside the folder that a server's operator gave it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.settings import settings_from
from fedproto_app.settings.paths import OUTPUT_ROOT, within_root

ENCODER = {"task": "sequence-classification", "method": "fed-react"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    monkeypatch.setenv(OUTPUT_ROOT, str(folder))
    return folder


def test_relative_paths_start_at_the_root(root: Path) -> None:
    settings = within_root(settings_from({**ENCODER, "output.dir": "a/b", "encoder.path": "x"}))
    assert settings.output.dir == str(root / "a" / "b")
    assert settings.encoder.path == str(root / "x")


def test_the_root_itself_and_what_lies_in_it_are_allowed(root: Path) -> None:
    for path in (str(root), str(root / "a"), "a/../b", "."):
        within_root(settings_from({"output.dir": path}))


@pytest.mark.parametrize("path", ["..", "/etc", "a/../../b", "out", "out/x"])
@pytest.mark.parametrize("key", ["output.dir", "encoder.path", "graph.path", "graph.names"])
def test_no_path_leaves_it(root: Path, key: str, path: str) -> None:
    graph = {"graph.source": "file", "graph.path": "edges.csv"} if "graph" in key else {}
    config: dict[str, Any] = {**ENCODER, **graph, key: path}
    with pytest.raises(SettingsError, match=rf"{key} = '{path}': is .*outside {OUTPUT_ROOT}"):
        within_root(settings_from(config))


def test_without_a_root_the_server_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OUTPUT_ROOT, raising=False)
    settings = settings_from({"output.dir": "../x"})
    assert within_root(settings) == settings
