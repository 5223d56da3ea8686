"""What a report recommends, by its finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedproto_app.report.comparison import questions
from fedproto_app.report.page.next_step import NextStep, next_step
from fedproto_app.report.taking_part import chosen_to_share
from tests.report.made_runs import alone, grouped, shared


def step(*folders: Path) -> NextStep:
    (question,) = questions(grouped(*folders))
    return next_step(question, chosen_to_share(question))


def kindred(sharing: str) -> dict[str, Any]:
    settings = {"method": "kindred", "kindred": {"sharing": sharing}, "data": {"horizon": 24}}
    return {"method": "kindred", "settings": settings, "settings_digest": sharing}


@pytest.mark.parametrize(
    ("errors", "text", "command"),
    [
        ((0.5,) * 7, "Use kindred (federated).", "fedproto forecast a --steps 24 --out next.csv"),
        ((0.5, 0.5, 0.5, 0.9, 1.5, 1.5, 1.5), "Do not decide yet", "--set data.train-share=0.5"),
        ((0.5, 0.5), "Do not decide yet, because a 95% interval needs 6 clients.", "--pairs"),
        ((0.5,), "Do not decide yet, because only one client can be compared.", "--pairs"),
        ((2.0,) * 7, "Use kindred (local), which", "fedproto forecast b --steps 24"),
    ],
)
def test_the_next_step_follows_the_finding(
    errors: tuple[float, ...],
    text: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = (
        shared(tmp_path / "a", errors, **kindred("kin")),
        alone(tmp_path / "b", (1.0,) * len(errors), **kindred("none")),
    )
    for folder in folders:
        (folder / "state").mkdir()
    advised = step(*folders)
    assert advised.text.startswith(text)
    assert command in advised.command


def test_what_is_missing_is_run_first(tmp_path: Path) -> None:
    """First the same model alone, by its own setting or as solo, then a method that shares."""
    together = shared(tmp_path / "a", (0.5, 0.5), **kindred("kin"))
    solo = alone(tmp_path / "b", (1.0, 1.0), settings={"data": {"horizon": 24}})
    for folders in ([together], [together, solo]):
        assert "--set kindred.sharing=none --set output.name=a-local" in step(*folders).command
    trained = shared(tmp_path / "c", (0.5, 0.5), method="fedavg")
    assert "--set method=solo" in step(trained).command
    lonely = step(alone(tmp_path / "d", (1.0, 1.0), **kindred("none")))
    assert "--set method=kindred --set kindred.sharing=kin" in lonely.command


def test_shared_columns_need_a_rival_with_the_same_columns(tmp_path: Path) -> None:
    def run_with(name: str, columns: str, sharing: str) -> Path:
        changes = kindred(sharing)
        changes["settings"] |= {"data": {"known": columns}, "response": {"sharing": "all"}}
        changes["settings_digest"] += columns
        make = alone if sharing == "none" else shared
        return make(tmp_path / name, (1.0,) * 7, **changes)

    advised = step(run_with("a", "", "none"), run_with("b", "rain", "kin"))
    assert advised.text.startswith("Run kindred without sharing")
    assert "b/settings.toml --set kindred.sharing=none --set response.sharing=none" in (
        advised.command
    )
    together = step(run_with("c", "rain", "none"))
    assert "--set kindred.sharing=kin --set response.sharing=all" in together.command
