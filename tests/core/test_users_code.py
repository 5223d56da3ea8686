"""Functions that settings name, and the search for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.loading import look_here_for_users_code, named_function


def test_the_function_is_found() -> None:
    assert named_function("data.source", "os.path:join", DataError)("a", "b") == str(Path("a/b"))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("nowhere.at.all:join", "No module named 'nowhere'"),
        ("os.path:absent", "has no attribute 'absent'"),
        ("os.path:sep", "sep is not a function"),
        (":join", "expected package.module:NAME"),
    ],
)
def test_a_missing_function_is_reported_with_its_setting(setting: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^model.module = '{setting}': .*{reason}"):
        named_function("model.module", setting, SettingsError)


def test_modules_where_the_user_stands_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_where_i_stand.py").write_text("def factory():\n    return 7\n")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError):
        named_function("model.module", "found_where_i_stand:factory", SettingsError)
    look_here_for_users_code()
    look_here_for_users_code()
    assert named_function("model.module", "found_where_i_stand:factory", SettingsError)() == 7
    assert sys.path.count(str(tmp_path)) == 1
