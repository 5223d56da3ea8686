"""The pages of results: what their files declare, the runs behind them and the tables' lines."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.pages import (
    MADE,
    ROOT,
    RUNS,
    CannotMerge,
    Provenance,
    Shown,
    merge,
    publish,
    read_section,
    read_table,
    section_of,
    table_file,
    titles,
    with_origin,
    write_table,
)
from benchmarks.rand_curves import rand_curve
from benchmarks.results import __main__ as command
from benchmarks.results import declared
from benchmarks.results.declared import PAGES, Job, Page, Table, page
from benchmarks.results.runs import finished, run
from benchmarks.results.tables import arranged, lines_of, standard_error
from fedproto_app.report.runs import Group, Run
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.settings.reading import flat
from tests.report.made_runs import make_run

HEAD = ["method", "MSE", "seeds"]
TABLE = [HEAD, ["A", "1", "3"], ["B", "2", "3"], ["C", "3", "1"]]
FORECASTS = page("forecasting").tables["milano"]
CLUSTERS = page("sequences").tables["pendigits-clusters"]
IMAGES = page("classification").tables
CLIENTS = "client,node,group,accuracy\n"  # the head of clients.csv


def make_row(
    output: Path,
    table: Table,
    row: str,
    seed: int = 0,
    errors: Sequence[float] = (0.25, 0.5),
    **changes: Any,
) -> None:
    """Create the finished run of a row.

    changes: with a dot, different settings, None for a setting that did not exist yet, and without,
    figures of the summary."""
    job = table.rows[row].job(table, seed, output)
    config = flat(tomllib.loads((ROOT / "configs" / job.config).read_text()))
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in job.changes.items()}
    settings = flat_settings(settings_from(config | texts))
    settings |= {key: value for key, value in changes.items() if "." in key}
    present = {key: value for key, value in settings.items() if value is not None}
    figures = {key: value for key, value in changes.items() if "." not in key}
    method = {"method": settings["method"]}
    make_run(output / job.name, errors, settings=present, seed=seed, **{**method, **figures})


# --- what is declared ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_show_their_files_as_the_command_writes_them(name: str) -> None:
    of_name = page(name)
    assert of_name.file.read_text().count("<!-- /") == len(of_name.sections) > 0
    for section, keys in of_name.sections.items():
        texts = read_section(of_name.file, section, command.MAKER)
        assert texts == command.texts_of(keys), section
        rows = [line.split(" | ")[0].removeprefix("| ") for line in texts[2:-2]]
        assert len(rows) == len(keys.shown.rows or rows), section
        assert bool(rows) == (keys.shown.columns != []), section
    for table in of_name.tables.values():
        lines = read_table(table_file(of_name.file, table.name))
        assert [list(line) for line in lines] == list(arranged(table, lines)), table.name
        assert list(lines[0][-2:]) == [RUNS, MADE]
        assert len(titles(lines, table.keys)) == len(lines) - 1
        assert all(Provenance.parsed(line[-1]).dates for line in lines[1:]), table.name


def test_each_file_of_a_table_is_linked() -> None:
    results = ROOT / "docs" / "results"
    links = "".join(page.read_text() for page in results.glob("*.md"))
    files = list((results / "tables").glob("*.csv"))
    assert [file.name for file in files if f"(tables/{file.name})" not in links] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_run_of_each_row_is_accepted_and_has_a_line(name: str, tmp_path: Path) -> None:
    for table in page(name).tables.values():
        for row in table.rows:
            if not (tmp_path / table.rows[row].run_name(0)).exists():  # tables share runs
                make_row(tmp_path, table, row)
        groups = finished(table, tmp_path)
        assert list(groups) == list(table.rows)
        if table.view:
            assert titles(lines_of(table, groups), table.keys)  # refuses a title that recurs
        elif table.keys == 1:
            assert len({row.title for row in table.rows.values()}) == len(table.rows)


def test_each_row_has_its_settings_over_those_of_set_group_and_table() -> None:
    rows = page("sequences").tables["beta"].rows
    learner, row = rows["0.25-encoder-svm"], rows["0.25-a2"]
    assert row.encoder == learner
    assert (row.folder, row.title) == ("beta-0.25/a2", "β = 0.25, A2")
    assert row.changes == {
        "data.clusters.clients": 100,
        "encoder.steps": 5,
        "data.clusters.beta": 0.25,
        "fed-react.similarity": "cosine",
        "fed-react.smoothing": "forgetting",
    }
    assert learner.changes["fed-react.clusters"] == 100  # changed; its set has 10
    assert "fcgcn" not in page("forecasting").tables["m4-quarter"].rows


# --- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "row", "changes", "message"),
    [
        (CLUSTERS, "a1", {"encoder.batch-size": 11}, "encoder.batch-size = 11, which is 10"),
        (CLUSTERS, "a1", {"encoder.path": ""}, "encoder.path = "),
        (CLUSTERS, "a1", {"fed-react.smoothing": None}, "smoothing = 'kalman', which is 'mean'"),
        (IMAGES["digits"], "gldp", {"gldp.memory": 0.25}, "gldp.memory = 0.25, which is 0.5"),
        (IMAGES["digits"], "fedavg", {"encoder.path": "a run"}, "encoder.path = "),
    ],
)
def test_a_run_of_other_settings_is_refused(
    tmp_path: Path, table: Table, row: str, changes: dict[str, Any], message: str
) -> None:
    make_row(tmp_path, table, row, **changes)
    with pytest.raises(SystemExit, match=message):
        finished(table, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"data.path": "/elsewhere", "output.dir": "/elsewhere", "nodes.minimum": 7},
        {"encoder.negatives": None, "flsc.overlap": None},  # younger than the run
        {"gone.since": 1},
        {"encoder.path": "/elsewhere/pendigits-clusters/encoder-svm-s0"},
    ],
)
def test_settings_without_effect_on_figures_may_differ(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    make_row(tmp_path, CLUSTERS, "a1", **changes)
    assert list(finished(CLUSTERS, tmp_path)) == ["a1"]


def test_an_interrupted_run_resumes_if_its_settings_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    folder = tmp_path / "page" / "small"

    def cut_off(command: list[str], **_: Any) -> Any:
        commands.append(command[1:])
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        raise SystemExit("cut off")

    monkeypatch.setattr("benchmarks.results.runs.subprocess.run", cut_off)
    job = Job("page/small", "demo.toml", {"rounds": 6})
    for repeated in (job, job, replace(job, changes={"rounds": 7})):
        with pytest.raises(SystemExit):
            run(repeated, tmp_path)
    assert ["--resume" in command for command in commands] == [False, True, False]
    (folder / "summary.json").write_text("{}")
    run(job, tmp_path)
    assert len(commands) == 3


# --- lines --------------------------------------------------------------------------------------

GLDP = {
    "accuracy_global": 0.5,
    "accuracy_local": 0.25,
    **{
        f"by_inference.{inference}.{model}": value
        for inference, values in {
            "local-prototypes": (0.5, 0.25),
            "global-prototypes": (0.625, 0.375),
            "head": (0.75, 0.125),
        }.items()
        for model, value in zip(("global", "local"), values, strict=True)
    },
    "balanced_local": 0.1,
}


def group(**figures: Any) -> Group:
    return Group((Run(Path(), {"method": "any", "seed": 0, **figures}, {}),))


def cells(table: Table, groups: dict[str, Group], title: str, *columns: str) -> list[str]:
    head, *rows = lines_of(table, groups)
    (line,) = [row for row in rows if row[0] == title]
    return [line[list(head).index(column)] for column in columns]


def test_the_papers_personal_model_is_gldps_shared_encoder_and_others_trained_model() -> None:
    groups = {"gldp": group(**GLDP), "fedavg": group(accuracy_global=0.5, accuracy_local=0.25)}
    columns = ("A_glo", "A_loc", "A_loc, as the paper", "balanced A_loc")
    table = IMAGES["digits"]
    assert cells(table, groups, "gldp, local prototypes", *columns) == [
        "50.0", "25.0", "50.0", "10.0",
    ]  # fmt: skip
    assert cells(table, groups, "gldp, head", *columns) == ["75.0", "12.5", "75.0", "-"]
    assert cells(table, groups, "fedavg", *columns) == ["50.0", "25.0", "25.0", "-"]


def test_an_inference_with_a_separate_row_is_shown_once_and_in_full() -> None:
    groups, table = (
        {"gldp": group(**GLDP), "gldp-head": group(**GLDP)},
        IMAGES["cifar10-paper-if50"],
    )
    assert [line[0] for line in lines_of(table, groups)[1:]] == [
        "gldp, local prototypes",
        "gldp, global prototypes",
        "gldp, head",
    ]
    assert cells(table, groups, "gldp, head", "balanced A_loc", "paper's A_glo") == ["10.0", "-"]
    assert cells(table, groups, "gldp, local prototypes", "paper's A_loc") == ["65.4"]


def test_a_hidden_row_gives_columns_instead_of_a_line() -> None:
    groups = {
        "fedavg": group(accuracy_global=0.5, accuracy_local=0.25),
        "gldp": group(**GLDP),
        "fedavg-everybody": group(accuracy_global=0.5, accuracy_local=0.125),
    }
    table = IMAGES["cifar10-one-stage-4-classes-if10"]
    columns = ("A_loc, own classes", "A_loc, everybody's", "paper's A_loc")
    assert cells(table, groups, "fedavg", *columns) == ["25.0", "12.5", "43.1"]
    assert cells(table, groups, "gldp, head", *columns) == ["12.5", "-", "-"]


def test_a_line_for_every_beta_and_number_of_labels(tmp_path: Path) -> None:
    groups = {}
    for name, accuracy in (("0.5/8 in all/sc", 0.25), ("0.5/8 a round/a1", 0.75)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "clients.csv").write_text(f"{CLIENTS}a,n,,0\nb,n,,1\n")
        figures = {"accuracy_rounds": accuracy, "rand_index_rounds": 0.5}
        groups[name] = Group((Run(folder, figures, {}),))
    head, *lines = lines_of(page("sequences").tables["labels"], groups)
    shown = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(line["β"], line["labels"]) for line in shown] == [
        ("0.5", "8 in all"), ("0.5", "8 a round"),
    ]  # fmt: skip
    assert [line["SC"] for line in shown] == ["25.0", "-"]
    assert [line["A1"] for line in shown] == ["-", "75.0"]
    assert [line["Rand index, SC"] for line in shown] == ["0.50", "-"]
    assert {line["standard error"] for line in shown} == {"50.0"}


def test_the_standard_error_pools_clients_and_seeds(tmp_path: Path) -> None:
    """0, 1, 1 and 0 around ½: sample variance 4·¼/3, over four clients 1/12."""
    runs = []
    for seed, rows in enumerate(("a,n,,0\nb,n,,1\n", "a,n,,1\nb,n,,0\n")):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "clients.csv").write_text(CLIENTS + rows)
        runs.append(Run(tmp_path / str(seed), {}, {}))
    assert standard_error(Group(tuple(runs)), "accuracy") == pytest.approx((1 / 12) ** 0.5)


def test_a_curve_is_the_mean_over_seeds_of_the_rounds_that_all_have(tmp_path: Path) -> None:
    for seed, curve in (("0", [0.0, 0.5, 1.0]), ("1", [1.0, 0.75])):
        (tmp_path / seed).mkdir()
        np.savez(tmp_path / seed / "clusters.npz", rand_index=curve)
    runs = Group(tuple(Run(tmp_path / seed, {}, {}) for seed in "01"))
    assert rand_curve(runs).tolist() == [0.5, 0.625]


def test_forecasts_stand_in_the_order_of_the_median() -> None:
    rows = [
        ["LightGBM on pooled data", "0.1"], ["A", "-"], ["B", "0.3 ± 0.1"], ["C", "0.2"],
    ]  # fmt: skip
    lines = arranged(FORECASTS, [["method", "median MSE"], *rows])
    assert [line[0] for line in lines[1:]] == ["C", "B", "A", "LightGBM on pooled data"]


# --- sections -----------------------------------------------------------------------------------


def test_clients_are_better_off_than_all_rivals_or_nobody_knows(tmp_path: Path) -> None:
    """In seed 1 Solo has no run, so only seed 0 counts."""
    alone = {"parameters_up": 0, "parameters_down": 0}
    for rival in FORECASTS.rivals:
        for seed in (0, 1)[: 1 if rival == "solo" else 2]:
            make_row(tmp_path, FORECASTS, rival, seed, [0.3, 0.4], **alone)
    make_row(tmp_path, FORECASTS, "fedavg", 0, [0.2, 0.5])
    make_row(tmp_path, FORECASTS, "fedavg", 1, [0.2, 0.2])
    make_row(tmp_path, FORECASTS, "fedrep", 1, [0.2, 0.2])
    lines = lines_of(FORECASTS, finished(FORECASTS, tmp_path))
    place = lines[0].index("better off")
    cells = {line[0]: line[place] for line in lines}
    assert (cells["FedAvg"], cells["FedRep"], cells["Solo"]) == ("50.0%", "-", "-")


def test_new_rows_replace_rows_of_their_title_and_the_others_stay_in_place() -> None:
    new = [HEAD, ["D", "4", "3"], ["B", "5", "3"], ["E", "6", "1"], ["A", "9", "2"]]
    lines, stay = merge(TABLE, new)
    assert lines == [
        HEAD,
        ["D", "4", "3"],  # first in the new table
        ["A", "1", "3"],  # of more seeds than the new one
        ["B", "5", "3"],
        ["E", "6", "1"],  # after the row that it follows in the new table
        ["C", "3", "1"],
    ]
    assert stay == ["A"]
    head = ["β", "labels", "SC"]
    two = merge([head, ["0.1", "8", "1 ± 2"]], [head, ["0.1", "8", "3"], ["0.1", "9", "4"]], keys=2)
    assert two == ([head, ["0.1", "8", "1 ± 2"], ["0.1", "9", "4"]], ["0.1, 8"])


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CannotMerge, match=r"method, MSE, seeds, .+ method, MAE, seeds"):
        merge(TABLE, [["method", "MAE", "seeds"], ["A", "1", "3"]])
    twice = [HEAD, ["A", "1", "1"], ["A", "2", "1"]]
    for old, new in ((twice, TABLE), (TABLE, twice), ([], twice)):
        with pytest.raises(CannotMerge, match="several rows are called 'A'"):
            merge(old, new)


def test_a_section_shows_a_part_of_files_side_by_side(tmp_path: Path) -> None:
    files = {"x": tmp_path / "x.csv", "y": tmp_path / "y.csv"}
    head = ["method", "MSE", "sent", RUNS, MADE]
    write_table(files["x"], [head, ["A", "1 ± 2", "9", "a run", "2026-01-02 on X"]])
    more = ["B", "3", "8", "a run", "2026-02-01 to 2026-02-03 with torch 1 on X"]
    write_table(files["y"], [head, more, ["A", "4", "7", "two", "2026-01-05 on Y"]])
    note = [
        "",
        "All rows and their commands: [x](tables/x.csv), [y](tables/y.csv). "
        "Made 2026-01-02 to 2026-02-03.",
    ]
    assert section_of(files, Shown(["B", "A"], ["MSE"], means=True)) == [
        "| method | x | y |", "| --- | ---: | ---: |", "| B | - | 3 |", "| A | 1 | 4 |", *note,
    ]  # fmt: skip
    two_columns = section_of(files, Shown(["A"], ["sent", "MSE"]))
    assert two_columns[0] == "| method | x, sent | x, MSE | y, sent | y, MSE |"
    assert two_columns[2] == "| A | 9 | 1 ± 2 | 7 | 4 |"
    assert section_of(files, Shown(columns=())) == note[1:]
    assert section_of(files, Shown(["C", "B"]))[2:-2] == ["| B | - | - | 3 | 8 |"]
    with pytest.raises(ValueError, match="'MAE' is not in list"):
        section_of(files, Shown(["A"], ["MAE"]))


def test_a_benchmark_keeps_the_lines_of_its_file(tmp_path: Path) -> None:
    page_file = tmp_path / "page.md"
    page_file.write_text("before\n<!-- t: written by me -->\n<!-- /t -->\nafter\n")
    head = ["data", "days", "MSE"]
    for day, data in ((1, "x, y"), (2, "z")):
        lines = with_origin([head, [data, "7", str(day)]], "runs", f"2026-01-0{day} on X")
        publish(page_file, "t", "me", lines, Shown(keys=2))
    assert [line[:3] for line in read_table(table_file(page_file, "t"))] == [
        head, ["z", "7", "2"], ["x, y", "7", "1"],
    ]  # fmt: skip
    assert read_section(page_file, "t", "me")[2:4] == ["| z | 7 | 2 |", "| x, y | 7 | 1 |"]


@pytest.fixture
def forecasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return the page of forecasts, while the command writes into a copy of all pages."""
    monkeypatch.setattr(declared, "RESULTS", shutil.copytree(declared.RESULTS, tmp_path / "pages"))
    monkeypatch.setattr("benchmarks.pooled_trees.is_there", lambda: False)
    return page("forecasting")


def test_the_command_writes_rows_whose_runs_are_here_and_keeps_the_others(
    forecasts: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for seed in (0, 1, 2):
        make_row(runs, FORECASTS, "solo", seed, mse_median=0.12, parameters_up=0, parameters_down=0)
    make_row(runs, FORECASTS, "kindred-linear", mse_median=0.12, parameters_up=9, parameters_down=9)
    broken = page("forecasting").tables["electricity"]
    make_row(runs, broken, "fedavg")
    file = table_file(forecasts.file, "milano")
    old = read_table(file)
    renamed = table_file(forecasts.file, "electricity")
    renamed.write_text(renamed.read_text().replace("better off", "ahead", 1))

    options = ["forecasting", "milano", "electricity", "--output", str(runs), "--page-only"]
    with pytest.raises(SystemExit, match=r"electricity\.csv: the file has the columns"):
        command.main(options)
    new = {line[0]: line for line in read_table(file)}
    assert new["Solo"][1:3] == ["0.3750 ± 0.0000", "0.1200 ± 0.0000"]
    assert new["Solo"][-1] != new["Kindred, linear"][-1]
    assert [new[line[0]] for line in old if line[0] != "Solo"] == [
        line for line in old if line[0] != "Solo"
    ]
    assert "kept, of more seeds or figures: Kindred, linear" in capsys.readouterr().out
    (shown,) = [
        line
        for line in read_section(forecasts.file, "overview", command.MAKER)
        if line.startswith("| Solo |")
    ]
    assert shown.startswith("| Solo | 0.3750 | 0.1208 |")
    systems = read_section(page("systems").file, "overview", command.MAKER)
    assert any(line.startswith("| Solo | 0.3750 | - |") for line in systems)
    command.main([*options[:2], *options[3:], "--whole"])
    assert [line[0] for line in read_table(file)[1:]] == ["Kindred, linear", "Solo"]
