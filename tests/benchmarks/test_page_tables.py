"""A new table put into a page's: what stays, what is replaced, what is refused, what made it."""

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
from benchmarks.classification_tables import INFERENCES
from benchmarks.page_tables import CannotMerge, Lines, footnotes, merge, parse, titles
from benchmarks.result_page import Page, command, section
from benchmarks.result_runs import read_section
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
THERE = [HEAD, ["A", "1", "3"], ["**B**", "2", "3"], ["C", "3", "1"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_the_pages_as_they_stand_are_read_and_written_without_a_change(page: Page) -> None:
    for name, experiment in page.experiments.items():
        texts = read_section(page.path, name, page.maker)
        read = parse(texts)
        assert read.texts() == texts, name
        assert bool(read.lines) == any(text.startswith("|") for text in texts), name
        if read.lines:
            assert list(experiment.arrange(read.lines)) == list(read.lines), name
            assert len(titles(read.lines, experiment.keys)) == len(read.lines) - 1
            assert read.paragraphs, name


@pytest.mark.parametrize(
    ("page", "called"),
    [
        (forecasting_results.PAGE, forecasting_results.TITLES),
        (systems_results.PAGE, forecasting_results.TITLES),
        (sequence_results.PAGE, sequence_rows.TITLES),
        (fuels_results.PAGE, fuels_results.TITLES),
    ],
    ids=lambda one: getattr(one, "file", ""),
)
def test_no_two_rows_of_a_table_are_called_alike(page: Page, called: Mapping[str, str]) -> None:
    for experiment in page.experiments.values():
        if experiment.keys == 1:
            lines = [HEAD, *([called.get(row, row)] for row in experiment.rows)]
            assert len(titles(lines)) == len(experiment.rows)


def test_no_two_lines_of_a_table_of_images_are_called_alike() -> None:
    for experiment in classification_results.PAGE.experiments.values():
        settings = {
            row: {"gldp.inference": "local-prototypes", **one.changes}
            for row, one in experiment.rows.items()
        }
        groups = {
            row: Group((Run(Path(), {"method": of["method"]}, of),)) for row, of in settings.items()
        }
        assert titles(experiment.table(groups), experiment.keys)


def test_new_lines_replace_their_like_and_the_others_stay_in_their_places() -> None:
    merged = merge(THERE, [HEAD, ["D", "4", "3"], ["B", "5", "3"], ["E", "6", "1"]])
    assert merged.lines == [
        HEAD,
        ["D", "4", "3"],  # first in the new table
        ["A", "1", "3"],
        ["B", "5", "3"],  # bold on the page
        ["E", "6", "1"],  # behind the line that it follows in the new table
        ["C", "3", "1"],
    ]
    assert merged.made == {"D", "B", "E"}
    assert not merged.of_more_seeds
    assert not merged.of_more_figures


def test_a_line_may_be_known_by_two_cells() -> None:
    head = ["β", "labels", "SC"]
    page = [head, ["0.1", "8", "1"], ["0.1", "32", "2"]]
    merged = merge(page, [head, ["0.1", "32", "3"], ["0.5", "8", "4"]], keys=2)
    assert merged.lines == [
        head,
        ["0.1", "8", "1"],
        ["0.1", "32", "3"],
        ["0.5", "8", "4"],
    ]
    assert merged.made == {"0.1, 32", "0.5, 8"}


def test_a_line_of_more_seeds_stays() -> None:
    merged = merge(THERE, [HEAD, ["A", "9", "2"], ["C", "9", "2"], ["B", "9", "3"]])
    assert merged.lines == [HEAD, ["A", "1", "3"], ["B", "9", "3"], ["C", "9", "2"]]
    assert merged.of_more_seeds == ("A",)
    assert merged.made == {"B", "C"}


@pytest.mark.parametrize(("there", "here"), [("1 ± 2", "3"), ("1", "-"), ("1 ± 2", "-")])
def test_a_line_stays_where_the_new_one_lacks_a_figure(there: str, here: str) -> None:
    head = ["method", "MSE", "MAE"]
    page = [head, ["A", there, "-"], ["B", "1", "1"]]
    merged = merge(page, [head, ["A", here, "5 ± 6"], ["B", "2", "2"]])
    assert merged.lines == [head, ["A", there, "-"], ["B", "2", "2"]]
    assert merged.of_more_figures == ("A",)
    assert merged.made == {"B"}
    more = [head, ["A", here, "5 ± 6"], ["B", "1", "1"]]
    assert merge(more, [head, ["A", there, "5 ± 6"]]).made == {"A"}


def test_an_empty_section_is_written() -> None:
    for texts in ([], ["*Not made yet.*"]):
        read = parse(texts)
        assert read.texts() == texts
        merged = merge(read.lines, THERE)
        assert merged.lines == THERE
        assert footnotes(read.paragraphs, "new", merged.lines, merged.made) == ["new"]


MORE_SEEDS = [["method", "MAE", "seeds"], ["A", "1", "3"], ["B", "2", "2"], ["C", "3", "1"]]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ([["method", "MAE", "seeds"], ["A", "1", "3"]], "only there: MSE; only here: MAE"),
        (MORE_SEEDS, "only there: MSE; only here: MAE"),  # B of fewer seeds
        ([["method", "seeds"], ["A", "3"], ["B", "3"], ["C", "1"]], r"\(only there: MSE\)"),
        ([["MSE", "method", "seeds"], ["A", "1", "3"]], "in another order"),
        ([["method", "MSE", "MSE", "seeds"], ["A", "1", "1", "3"]], r"\(only here: MSE\)"),
    ],
)
def test_a_table_of_other_columns_is_not_written_where_it_would_lose(new: Lines, said: str) -> None:
    with pytest.raises(CannotMerge, match=said) as refusal:
        merge(THERE, new)
    assert "--whole" in str(refusal.value)


def test_a_table_of_other_columns_is_written_where_it_loses_nothing() -> None:
    head = ["method", "MAE", "seeds"]
    new = [head, ["C", "3", "2"], ["D", "4", "1"], ["B", "2", "3"], ["A", "1", "3"]]
    merged = merge(THERE, new)
    assert merged.lines == new
    assert merged.made == {"A", "B", "C", "D"}


def test_titles_that_are_not_unique_are_refused_on_the_page_and_here() -> None:
    twice = [HEAD, ["A", "1", "1"], ["**A**", "2", "1"]]
    for page, new in ((twice, THERE), (THERE, twice), ([], twice)):
        with pytest.raises(CannotMerge, match="2 lines are called 'A'"):
            merge(page, new)
    with pytest.raises(CannotMerge, match="cannot hold '; '"):
        merge([], [HEAD, ["A; B", "1", "1"]])


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
        parse(texts)


def test_footnotes_name_the_lines_that_they_are_of() -> None:
    """One run after another of A, B, C and D: who made what is told at each time."""
    table: Lines = [HEAD, ["A"], ["**B**"], ["C"], ["D"]]

    def after(page: list[str], new: str, *made: str) -> list[str]:
        return footnotes(page, new, table, frozenset(made))

    first = after(["old"], "new", "D", "B")
    assert first == ["**B; D**: new", "**All others**: old"]
    second = after(first, "newer", "B", "C")
    assert second == ["**D**: new", "**B; C**: newer", "**All others**: old"]
    third = after(second, "newest", "A")  # the last of all others
    assert third == ["**D**: new", "**B; C**: newer", "**A**: newest"]
    assert after(third, "last", "A", "D") == ["**B; C**: newer", "**A; D**: last"]
    assert after(third, "last", "A", "B", "C", "D") == ["last"]


def test_a_footnotes_heading_names_only_lines_that_there_are() -> None:
    page = ["**A; gone**: old", "**also gone**: older"]
    lines: Lines = [HEAD, ["A"], ["B"]]
    assert footnotes(page, "new", lines, frozenset("B")) == ["**A**: old", "**B**: new"]


def test_forecasts_stand_in_the_order_of_the_median() -> None:
    experiment = forecasting_results.PAGE.experiments["milano"]
    rows = ["LightGBM on pooled data 0.1", "A -", "B 0.3 ± 0.1", "C 0.2", "D 0.05 ± 0.9"]
    lines = [["", "median"], *(row.rsplit(" ", 3 if "±" in row else 1) for row in rows)]
    lines = [[line[0], " ".join(line[1:])] for line in lines]
    arranged = experiment.arrange(lines)
    assert [line[0] for line in arranged[1:]] == ["D", "C", "B", "A", "LightGBM on pooled data"]


def test_systems_stand_in_the_papers_order() -> None:
    experiment = systems_results.PAGE.experiments["milano"]
    rows = ["Solo", "by hand", "FUELS", "**Kindred**", "FedAvg"]
    arranged = experiment.arrange([["", "MSE"], *([row, "1"] for row in rows)])
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
    assert experiment.arrange(merge(page, new).lines) == [
        head,
        [step.format(0.001), "0.3", "1"],
        [step.format(0.01), "**0.2**", "3"],
        [step.format(0.1), "0.4", "2"],
        [fedgru, "**0.9**", "5"],
        ["`gone=1`", "0.1", "4"],
    ]


def copied(tmp_path: Path) -> Page:
    """The page of forecasts, whose file is a copy."""
    page = forecasting_results.PAGE
    (tmp_path / page.file).write_text(page.path.read_text())
    return replace(page, file=str(tmp_path / page.file))


def call(page: Page, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """The script's command line, without runs of its own."""
    output = str(page.path.parent / "runs")
    arguments = ["script", *words, "--page-only", "--output", output]
    monkeypatch.setattr(sys, "argv", arguments)
    command(page, None)


def test_a_row_made_here_leaves_the_pages_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copied(tmp_path)
    before = page.path.read_text()
    experiment = page.experiments["milano"]
    old = parse(read_section(page.path, "milano", page.maker))
    lines = {line[0]: line for line in old.lines[1:]}
    assert lines["Per-FedAvg"][-1] == "1"
    assert lines["FedRep"][-1] == "3"
    figures = {"mse_median": 0.12095, "seconds": 90.0, "parameters_up": 0, "parameters_down": 0}
    make_row(tmp_path / "runs", experiment, "solo", figures=figures)  # of one seed
    sent = {"parameters_up": 9, "parameters_down": 9, "seconds": 60.0}
    # Its errors are those of Solo, so it leaves nobody better off.
    for seed in (0, 1):
        make_row(tmp_path / "runs", experiment, "per-fedavg", seed, {"mse_median": 0.12095, **sent})
    call(page, monkeypatch, "milano")

    now = parse(read_section(page.path, "milano", page.maker))
    titles_now = [line[0] for line in now.lines[1:]]
    place = titles_now.index("Per-FedAvg")
    column = now.lines[0].index("median")
    medians = [float(line[column].partition(" ")[0]) for line in now.lines[1 : place + 3]]
    assert medians == sorted(medians)
    assert now.lines[place + 1][1:3] == ["0.3750 ± 0.0000", "0.1210 ± 0.0000"]
    assert now.lines[place + 1][-1] == "2"
    others = [line for line in now.lines if line[0] != "Per-FedAvg"]
    assert others == [line for line in old.lines if line[0] != "Per-FedAvg"]
    (new,) = [one for one in now.paragraphs if one.startswith("**Per-FedAvg**: ")]
    rest = [one for one in now.paragraphs if one != new]
    assert "`python -m benchmarks.forecasting_results milano --seeds 0 1`" in new
    assert "2 runs, 2 minutes" in new  # without Solo's
    *named, others_made = old.paragraphs
    assert rest == [*named, f"**All others**: {others_made.removeprefix('**All others**: ')}"]
    assert "kept on the page, of more seeds: Solo" in capsys.readouterr().out
    section_before = "\n".join(old.texts())
    assert page.path.read_text() == before.replace(section_before, "\n".join(now.texts()))

    call(page, monkeypatch, "milano", "--whole")
    alone = parse(read_section(page.path, "milano", page.maker))
    assert [line[0] for line in alone.lines[1:]] == ["Solo", "Per-FedAvg"]
    assert len(alone.paragraphs) == 1
    assert "3 runs, 4 minutes" in alone.paragraphs[0]


def test_tables_that_do_not_fit_are_told_at_the_end_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copied(tmp_path)
    text = page.path.read_text().replace("| better off |", "| ahead |", 1)
    page.path.write_text(text)
    for name in ("milano", "electricity"):
        make_row(tmp_path / "runs", page.experiments[name], "fedavg-tuned", 0)
    milano = read_section(page.path, "milano", page.maker)
    with pytest.raises(SystemExit) as refusal:
        call(page, monkeypatch, "milano", "m4", "electricity")
    assert "forecasting.md, milano: the page's table has other columns" in str(refusal.value)
    assert "only there: ahead; only here: better off" in str(refusal.value)
    assert "--whole" in str(refusal.value)
    assert "electricity" not in str(refusal.value)
    assert read_section(page.path, "milano", page.maker) == milano
    shown = capsys.readouterr().out
    assert "| FedAvg, fine-tuned | 0.3750 | 0.3125 |" in shown
    assert "m4: no finished run" in shown
    assert "kept on the page, of more seeds: FedAvg, fine-tuned" in shown  # on electricity
    call(page, monkeypatch, "milano", "--whole")
    assert len(parse(read_section(page.path, "milano", page.maker)).lines) == 2


def test_a_try_out_leaves_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = copied(tmp_path)
    quick = page.experiments["milano"].quick(page.quick)
    make_row(tmp_path / "runs", quick, "fedala")
    before = page.path.read_text()
    call(page, monkeypatch, "milano", "--quick")
    assert page.path.read_text() == before


def test_an_inference_stays_that_only_a_row_of_its_own_tells_in_full(tmp_path: Path) -> None:
    """GLDP's run has the accuracies of all three inferences, and the rest of one."""
    page = classification_results.PAGE
    experiment = page.experiments["digits-paper"]
    models = ("global", "local")
    kinds = ("accuracy", "balanced", "forgetting", "many", "medium", "few")
    figures = {f"{kind}_{model}": 0.5 for kind in kinds for model in models}
    figures |= dict.fromkeys(("accuracy_selected", "validation_error"), 0.5)
    inferences = {inference: dict.fromkeys(models, 0.5) for inference in INFERENCES}
    more = {"method": "gldp", "validation_error_local": 0.5, "by_inference": inferences}
    for seed in (0, 1, 2):
        make_row(tmp_path, experiment, "gldp", seed, {**figures, **more, "seconds": 60})
    there = parse(read_section(page.path, "digits-paper", page.maker))
    full = [
        ["1.0" if cell == "-" and line[0] == "gldp, head" else cell for cell in line]
        for line in there.lines
    ]
    old = replace(there, lines=full).texts()
    part = section(page, "digits-paper", experiment, tmp_path, old)
    changed = [new for new, was in zip(part.texts, old, strict=False) if new != was]
    of_two = ["gldp, local prototypes", "gldp, global prototypes"]
    assert [text[2:].partition(" | ")[0] for text in changed[:2]] == of_two
    assert changed[2].startswith("**gldp, local prototypes; gldp, global prototypes**: ")
    assert "3 runs, 3 minutes" in changed[2]
    kept = "kept on the page, with figures that the runs here do not tell: gldp, head"
    assert part.kept == [kept]
