"""``fedproto compare`` and ``fedproto pictures`` on made run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fedproto
from tests.report.made_runs import make_classification_run, make_run


def test_runs_are_compared_and_unfinished_ones_named(fedproto: Fedproto, tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, mse=0.25)
    make_run(tmp_path / "b", seed=1, mse=0.75)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "settings.toml").write_text("seed = 2\n")
    outcome = fedproto("compare", tmp_path)
    assert outcome.code == 0
    assert "0.5000 ± 0.2500" in outcome.out
    assert outcome.err == f"skipped {tmp_path / 'c'}: no summary.json, so no finished run\n"


def test_a_repeated_run_is_named(fedproto: Fedproto, tmp_path: Path) -> None:
    make_run(tmp_path / "old")
    make_run(tmp_path / "older")
    outcome = fedproto("compare", tmp_path, "--format", "csv")
    assert "old: a later run has the same settings and seed" in outcome.err
    assert len(outcome.out.splitlines()) == 2


def test_markdown_and_picture(fedproto: Fedproto, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    picture = tmp_path / "comparison.png"
    outcome = fedproto("compare", run, "--format", "markdown", "--picture", picture)
    assert outcome.code == 0
    assert outcome.out.startswith("| dataset |")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_sorted_and_tested_in_pairs(fedproto: Fedproto, tmp_path: Path) -> None:
    errors = [0.25 + number / 100 for number in range(6)]
    make_run(tmp_path / "a", errors, mse=0.5, mse_median=0.25)
    parameters_sent = {"parameters_up": 0, "parameters_down": 0}
    rival = [*(error + 0.25 for error in errors[1:]), 99.0]
    make_run(tmp_path / "b", rival, method="solo", mse=0.25, mse_median=0.5, **parameters_sent)
    table = fedproto("compare", tmp_path, "--pairs").out
    rows = [line.split()[:2] for line in table.splitlines() if line.startswith(("fuels", "solo"))]
    assert rows == [["fuels", "0.5000"], ["solo", "0.2500"], ["fuels", "best"]]
    heavy, verdict = table[table.index("toy: client") :].split("\n", 1)
    assert heavy == "toy: client 'c5' alone accounts for most of the mean MSE of solo (97%)"
    verdict = verdict.replace("\n", " ")
    # The ratios are 0.30 / 99, 0.25 / 0.51, 0.26 / 0.52, 0.27 / 0.53, …: median 0.5047.
    assert "Federated learning pays for toy: with fuels the median client's test MAE" in verdict
    assert "49.5% lower than that of its best local model" in verdict
    assert " 100.0 " in table  # better off
    marked = fedproto("compare", tmp_path, "--pairs", "--format", "markdown", "--sort", "mean").out
    assert marked.index("| solo |") < marked.index("| fuels |")
    assert "| toy | fuels | best local model | 6 | 6 | 0 | +49.5% |" in marked
    assert "| pays |" in marked
    as_csv = fedproto("compare", tmp_path, "--format", "csv", "--sort", "worst")
    assert "accounts for most of" in as_csv.err
    assert "Federated learning pays" in as_csv.err
    assert len(as_csv.out.splitlines()) == 3
    (tmp_path / "data-warnings.txt").write_text("c1 copies c2\n")  # as a trial leaves them
    (tmp_path / "provisos.txt").write_text("But some are copies.\n")
    doubted = fedproto("compare", tmp_path).out
    assert "\nwarning: c1 copies c2\n" in doubted
    assert doubted.rstrip().endswith("But some are copies.")
    wrong = fedproto("compare", tmp_path, "--sort", "best")
    assert wrong.code == 2


def test_no_word_breaks_in_a_terminal_of_80_columns(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for number, calendar in enumerate(("week", "none")):
        settings = {"data": {"calendar": calendar}, "fuels": {"inter-weight": float(number)}}
        folder = tmp_path / calendar
        make_run(folder, [0.25] * 6, settings, settings_digest=calendar, parameters_up=9)
    out = fedproto("compare", tmp_path, "--pairs").out
    assert max(map(len, out.splitlines())) <= 80
    for word in ("calendar=week", "inter-weight=0.0", "0.3750", "finding", "768"):
        assert word in out.split()


def test_no_pairs_to_test(fedproto: Fedproto, tmp_path: Path) -> None:
    outcome = fedproto("compare", make_run(tmp_path / "a"), "--pairs")
    assert outcome.code == 0
    assert outcome.err == "--pairs: no two runs have clients with errors to compare\n"


def test_pictures_prints_what_it_drew(fedproto: Fedproto, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    outcome = fedproto("pictures", run)
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        str(run / "pictures" / name) for name in ("clients.png", "rounds.png")
    ]


@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_runs_of_both_tasks_have_a_table_each(
    fedproto: Fedproto, tmp_path: Path, form: str
) -> None:
    make_classification_run(tmp_path / "a")
    make_run(tmp_path / "b")
    outcome = fedproto("compare", tmp_path, "--format", form)
    assert outcome.code == 0
    assert outcome.out.count("method ") + outcome.out.count("method,") == 2  # a head each
    head = {"csv": "accuracy_local_mean", "markdown": "A_loc %", "table": "shapes"}[form]
    places = [outcome.out.index(text) for text in ("toy", head, "fedavg")]
    assert places == sorted(places)
