"""Sections of result pages: new rows join a table, rows of other runs stay, the rest is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    classification_results,
    forecasting_results,
    fuels_results,
    sequence_results,
    sequence_rows,
    systems_results,
)
from benchmarks.classification_results import INFERENCES
from benchmarks.pages import (
    CannotMerge,
    Provenance,
    has_section,
    merge,
    parse_provenance,
    parse_table,
    read_section,
    table_texts,
    titles,
)
from benchmarks.result_page import Page, command, section
from fedproto_app.report.runs import Group, Run
from tests.benchmarks.made_rows import make_row

PAGES = [
    module.PAGE
    for module in (
        forecasting_results,
        systems_results,
        sequence_results,
        classification_results,
        fuels_results,
    )
]
HEAD = ["method", "MSE", "seeds"]
TABLE = [HEAD, ["A", "1", "3"], ["**B**", "2", "3"], ["C", "3", "1"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_the_sections_of_the_pages_are_as_their_command_writes_them(page: Page) -> None:
    shown = [name for name in page.experiments if has_section(page.path, name, page.maker)]
    assert shown
    assert page.path.read_text().count("<!-- /") == len(shown)
    for name in shown:
        experiment = page.experiments[name]
        lines, paragraph = parse_table(read_section(page.path, name, page.maker))
        assert list(experiment.arrange(lines)) == list(lines), name
        assert len(titles(lines, experiment.keys)) == len(lines) - 1
        assert parse_provenance(paragraph), name
        assert paragraph.startswith(f"`{name}`, `configs/{experiment.config}`: "), name


@pytest.mark.parametrize(
    ("page", "called"),
    [
        (forecasting_results.PAGE, forecasting_results.TITLES),
        (systems_results.PAGE, forecasting_results.TITLES),
        (sequence_results.PAGE, sequence_rows.TITLES),
        (fuels_results.PAGE, fuels_results.TITLES),
    ],
    ids=lambda page: getattr(page, "file", ""),
)
def test_no_two_rows_of_a_table_are_called_alike(page: Page, called: Mapping[str, str]) -> None:
    for experiment in page.experiments.values():
        if experiment.keys == 1:
            lines = [HEAD, *([called.get(row, row)] for row in experiment.rows)]
            assert len(titles(lines)) == len(experiment.rows)


def test_no_two_lines_of_a_table_of_images_are_called_alike() -> None:
    for experiment in classification_results.PAGE.experiments.values():
        settings = {
            row: {"gldp.inference": "local-prototypes", **definition.changes}
            for row, definition in experiment.rows.items()
        }
        groups = {
            row: Group((Run(Path(), {"method": changes["method"]}, changes),))
            for row, changes in settings.items()
        }
        assert titles(experiment.table(groups), experiment.keys)


def test_new_rows_replace_rows_of_their_title_and_the_others_stay_in_place() -> None:
    lines, stay = merge(TABLE, [HEAD, ["D", "4", "3"], ["B", "5", "3"], ["E", "6", "1"]])
    assert lines == [
        HEAD,
        ["D", "4", "3"],  # first in the new table
        ["A", "1", "3"],
        ["B", "5", "3"],  # bold on the page
        ["E", "6", "1"],  # after the row that it follows in the new table
        ["C", "3", "1"],
    ]
    assert stay == []
    assert merge([], TABLE) == (TABLE, [])


def test_two_cells_may_identify_a_row() -> None:
    head = ["β", "labels", "SC"]
    page = [head, ["0.1", "8", "1"], ["0.1", "32", "2"]]
    lines, _ = merge(page, [head, ["0.1", "32", "3"], ["0.5", "8", "4"]], keys=2)
    assert lines == [head, ["0.1", "8", "1"], ["0.1", "32", "3"], ["0.5", "8", "4"]]


def test_a_row_of_more_seeds_stays() -> None:
    lines, stay = merge(TABLE, [HEAD, ["A", "9", "2"], ["C", "9", "2"], ["B", "9", "3"]])
    assert lines == [HEAD, ["A", "1", "3"], ["B", "9", "3"], ["C", "9", "2"]]
    assert stay == ["A"]


@pytest.mark.parametrize(("old", "new"), [("1 ± 2", "3"), ("1", "-"), ("1 ± 2", "-")])
def test_a_row_stays_if_the_new_row_lacks_a_figure(old: str, new: str) -> None:
    head = ["method", "MSE", "MAE"]
    page = [head, ["A", old, "-"], ["B", "1", "1"]]
    lines, stay = merge(page, [head, ["A", new, "5 ± 6"], ["B", "2", "2"]])
    assert lines == [head, ["A", old, "-"], ["B", "2", "2"]]
    assert stay == ["A"]
    assert merge([head, ["A", new, "5 ± 6"]], [head, ["A", old, "5 ± 6"]])[1] == []


def test_a_table_of_other_columns_is_refused() -> None:
    with pytest.raises(CannotMerge, match=r"method, MSE, seeds, .+ method, MAE, seeds") as e:
        merge(TABLE, [["method", "MAE", "seeds"], ["A", "1", "3"]])
    assert "--whole" in str(e.value)


def test_titles_that_are_not_unique_are_refused() -> None:
    twice = [HEAD, ["A", "1", "1"], ["**A**", "2", "1"]]
    for page, new in ((twice, TABLE), (TABLE, twice), ([], twice)):
        with pytest.raises(CannotMerge, match="several rows are called 'A'"):
            merge(page, new)


@pytest.mark.parametrize(
    "texts",
    [
        ["| a | b |"],
        ["| a | b |", "| --- | --- |", "| 1 | 2 |"],
        ["| a | b |", "| --- | ---: |", "| 1 | 2 | 3 |"],
        ["by hand", "", "| a | b |", "| --- | ---: |", "| 1 | 2 |"],
        ["| a | b |", "| --- | ---: |", "| 1 | 2 |", ""],
    ],
)
def test_a_section_of_another_form_is_refused(texts: list[str]) -> None:
    with pytest.raises(CannotMerge, match="not as this command writes it"):
        parse_table(texts)
    assert parse_table([*table_texts(TABLE), "", "Made."]) == (TABLE, "Made.")


def test_a_note_covers_the_runs_of_old_and_new_rows() -> None:
    text = "`a`: 3 clients. Made 2026-01-02 with torch 1 on 2 cores, X."
    old = parse_provenance(text)
    assert old is not None
    assert old.text() == text.removeprefix("`a`: 3 clients. ")
    new = Provenance(frozenset(["2026-02-01", "2026-01-05"]), frozenset(["torch 2"]), frozenset())
    union = (old | new).text()
    assert union == "Made 2026-01-02 to 2026-02-01 with torch 1, torch 2 on 2 cores, X."
    assert parse_provenance(union) is not None
    assert parse_provenance("by hand") is None


def test_forecasts_stand_in_the_order_of_the_median() -> None:
    experiment = forecasting_results.PAGE.experiments["milano"]
    rows = ["LightGBM on pooled data 0.1", "A -", "B 0.3 ± 0.1", "C 0.2", "D 0.05 ± 0.9"]
    lines = [["method", "median MSE"], *(row.rsplit(" ", 3 if "±" in row else 1) for row in rows)]
    lines = [[line[0], " ".join(line[1:])] for line in lines]
    arranged = experiment.arrange(lines)
    assert [line[0] for line in arranged[1:]] == ["D", "C", "B", "A", "LightGBM on pooled data"]


def test_systems_stand_in_the_papers_order() -> None:
    experiment = systems_results.PAGE.experiments["milano"]
    rows = ["Solo", "by hand", "FUELS", "**Kindred**", "FedAvg"]
    arranged = experiment.arrange([["method", "MSE"], *([row, "1"] for row in rows)])
    assert [line[0] for line in arranged[1:]] == [
        "FedAvg",
        "FUELS",
        "**Kindred**",
        "Solo",
        "by hand",
    ]


def test_the_lowest_error_of_each_grid_is_bold_after_a_merge_too() -> None:
    experiment = systems_results.PAGE.experiments["milano-choice"]
    fedgru, step = "`fedgru.clusters=1`", "`per-fedavg.step-size={}`"
    head = ["setting", "validation MSE", "round kept"]
    page = [
        head,
        [step.format(0.001), "**0.3**", "1"],
        [step.format(0.1), "0.4", "2"],
        ["`gone=1`", "**0.1**", "4"],
    ]
    new = [head, [step.format(0.01), "0.2", "3"], [fedgru, "0.9", "5"]]
    assert experiment.arrange(merge(page, new)[0]) == [
        head,
        [step.format(0.001), "0.3", "1"],
        [step.format(0.01), "**0.2**", "3"],
        [step.format(0.1), "0.4", "2"],
        [fedgru, "**0.9**", "5"],
        ["`gone=1`", "0.1", "4"],
    ]


def copied(tmp_path: Path) -> Page:
    """Return the page of forecasts, with a copy of its file."""
    page = forecasting_results.PAGE
    (tmp_path / page.file).write_text(page.path.read_text())
    return replace(page, file=str(tmp_path / page.file))


def call(page: Page, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Call the script's command line, without making runs."""
    output = str(page.path.parent / "runs")
    arguments = ["script", *words, "--page-only", "--output", output]
    monkeypatch.setattr(sys, "argv", arguments)
    command(page, None)


def test_a_new_row_leaves_the_other_rows_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copied(tmp_path)
    before, experiment = page.path.read_text(), page.experiments["milano"]
    old, old_note = parse_table(read_section(page.path, "milano", page.maker))
    rows = {line[0]: line for line in old[1:]}
    assert (rows["Per-FedAvg"][-1], rows["FedRep"][-1]) == ("1", "3")
    figures = {"mse_median": 0.12095, "seconds": 90.0, "parameters_up": 0, "parameters_down": 0}
    make_row(tmp_path / "runs", experiment, "solo", figures=figures)  # of one seed
    costs = {"parameters_up": 9, "parameters_down": 9, "seconds": 60.0}
    for seed in (0, 1):
        make_row(
            tmp_path / "runs", experiment, "per-fedavg", seed, {"mse_median": 0.12095, **costs}
        )
    call(page, monkeypatch, "milano")

    new, note = parse_table(read_section(page.path, "milano", page.maker))
    place = [line[0] for line in new].index("Per-FedAvg")
    medians = [float(line[2].partition(" ")[0]) for line in new[1 : place + 2]]
    assert medians == sorted(medians)
    assert new[place][1:3] == ["0.3750 ± 0.0000", "0.1210 ± 0.0000"]
    assert new[place][-1] == "2"
    further = [line for line in new if line[0] != "Per-FedAvg"]
    assert further == [line for line in old if line[0] != "Per-FedAvg"]
    first, second = parse_provenance(old_note), parse_provenance(note)
    assert first is not None
    assert second is not None
    assert min(first.dates) == min(second.dates)
    assert first.versions <= second.versions
    assert "kept on the page, of more seeds or figures: Solo" in capsys.readouterr().out
    written = "\n".join([*table_texts(new), "", note])
    assert page.path.read_text() == before.replace(
        "\n".join([*table_texts(old), "", old_note]), written
    )
    call(page, monkeypatch, "milano", "--whole")
    replaced, _ = parse_table(read_section(page.path, "milano", page.maker))
    assert [line[0] for line in replaced[1:]] == ["Solo", "Per-FedAvg"]


def test_tables_that_do_not_fit_are_reported_at_the_end_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copied(tmp_path)
    page.path.write_text(page.path.read_text().replace("| better off |", "| ahead |", 1))
    for name in ("milano", "electricity"):
        make_row(tmp_path / "runs", page.experiments[name], "fedavg-tuned", 0)
    milano = read_section(page.path, "milano", page.maker)
    with pytest.raises(SystemExit) as refusal:
        call(page, monkeypatch, "milano", "m4", "electricity")
    assert "milano: the page's table has the columns" in str(refusal.value)
    assert "electricity" not in str(refusal.value)
    assert read_section(page.path, "milano", page.maker) == milano
    shown = capsys.readouterr().out
    assert "| FedAvg, fine-tuned | 0.3750 | 0.3125 |" in shown
    assert "m4: no finished run" in shown
    assert "of more seeds or figures: FedAvg, fine-tuned" in shown  # on electricity


def test_a_trial_and_a_table_without_a_section_leave_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copied(tmp_path)
    before = page.path.read_text()
    make_row(tmp_path / "runs", page.experiments["milano"].quick(page.quick), "fedala")
    call(page, monkeypatch, "milano", "--quick")
    make_row(tmp_path / "runs", page.experiments["milano-quarter"], "solo")
    call(page, monkeypatch, "milano-quarter")
    assert "| Solo | 0.3750 |" in capsys.readouterr().out
    assert page.path.read_text() == before


def test_a_row_stays_if_only_its_own_run_has_its_figures(tmp_path: Path) -> None:
    """GLDP's run has the accuracies of all three inferences, and the other figures of one."""
    page = classification_results.PAGE
    experiment = page.experiments["digits-paper"]
    models = ("global", "local")
    figures = {f"{kind}_{m}": 0.5 for kind in ("accuracy", "balanced", "few") for m in models}
    inferences = {inference: dict.fromkeys(models, 0.5) for inference in INFERENCES}
    for seed in (0, 1, 2):
        make_row(
            tmp_path, experiment, "gldp", seed,
            {**figures, "method": "gldp", "by_inference": inferences},
        )  # fmt: skip
    lines, note = parse_table(read_section(page.path, "digits-paper", page.maker))
    full = [
        ["1.0" if cell == "-" and line[0] == "gldp, head" else cell for cell in line]
        for line in lines
    ]
    texts, stay = section("digits-paper", experiment, tmp_path, [*table_texts(full), "", note])
    assert stay == ["gldp, head"]
    changed = [new for new, old in zip(parse_table(texts)[0], full, strict=True) if new != old]
    assert [line[0] for line in changed] == ["gldp, local prototypes", "gldp, global prototypes"]
