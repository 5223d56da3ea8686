"""Runs as long tables, read back by pandas and by Arrow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.report.export import long_tables, numbers, write_csv, write_parquet
from fedproto_app.report.runs import read_run
from tests.report.made_runs import make_classification_run, make_run


def test_numbers_of_a_record() -> None:
    record = {
        "round": 3,
        "loss": {"total": 0.5, "inner": {"deep": 1}},
        "stages": [0.25, None, 0.75],
        "refused": [{"node": "a"}, {"node": "b"}],
        "none": None,
        "text": "words",
        "flag": True,
        "huge": float("inf"),
    }
    assert numbers(record) == {
        "round": 3,
        "loss.total": 0.5,
        "loss.inner.deep": 1,
        "stages.1": 0.25,
        "stages.3": 0.75,
        "refused": 2,
    }


def test_csv_is_long_and_tells_the_run(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", [0.25, None])
    (first / "steps.csv").write_text("step,mse,mse_median\n1,0.2,0.1\n2,0.4,0.3\n")
    runs = [read_run(first), read_run(make_run(tmp_path / "second", seed=1))]
    written = write_csv(runs, tmp_path / "out")
    assert [file.name for file in written] == ["rounds.csv", "clients.csv", "steps.csv"]
    rounds = pd.read_csv(tmp_path / "out" / "rounds.csv")
    assert list(rounds) == ["run", "method", "dataset", "seed", "round", "figure", "value"]
    wide = rounds[rounds["run"] == "second"].pivot(index="round", columns="figure", values="value")
    assert wide["loss.total"].tolist() == [4.0, 2.0, pytest.approx(4 / 3)]
    assert wide["seconds.total"].tolist() == [1.0] * 3
    assert set(rounds["seed"]) == {0, 1}
    clients = pd.read_csv(tmp_path / "out" / "clients.csv")
    c0 = clients[(clients["run"] == "first") & (clients["client"] == "c0")]
    assert dict(zip(c0["figure"], c0["value"], strict=True))["rmse_units"] == 2.5
    c1 = clients[(clients["run"] == "first") & (clients["client"] == "c1")]
    assert set(c1["figure"]) == {"samples", "missing_share", "kept_round"}  # it has no errors
    steps = pd.read_csv(tmp_path / "out" / "steps.csv")
    assert steps["value"].tolist() == [0.2, 0.1, 0.4, 0.3]


def test_strangers_names_run_in_no_spreadsheet(tmp_path: Path) -> None:
    run = make_run(tmp_path / "=cmd|run")
    table = (run / "clients.csv").read_text().replace("c0,", "'=HYPERLINK(1),", 1)
    (run / "clients.csv").write_text(table)
    (client,) = (file for file in write_csv([read_run(run)], tmp_path / "out")[1:])
    rows = client.read_text().splitlines()[1:]
    assert all(row.startswith("'=cmd|run,") for row in rows)
    assert rows[0].split(",")[4] == "'=HYPERLINK(1)"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    (tmp_path / "clients.csv").write_text("mine")
    with pytest.raises(FedProtoError, match=r"clients\.csv: already exists"):
        write_csv([run], tmp_path)
    assert (tmp_path / "clients.csv").read_text() == "mine"
    assert not (tmp_path / "rounds.csv").exists()


def test_parquet_has_the_same_rows_with_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    runs = [
        read_run(make_run(tmp_path / "series")),
        read_run(make_classification_run(tmp_path / "images")),
    ]
    for file in write_parquet(runs, tmp_path / "out"):
        table = parquet.read_table(file)
        assert [tuple(row.values()) for row in table.to_pylist()] == long_tables(runs)[file.stem]
        types = {field.name: str(field.type) for field in table.schema}
        assert types["value"] == "double"
        assert types["seed"] == "int64"
        assert types["run"] == "string"


def test_without_the_library_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r'pip install "fedproto-app\[parquet\]"'):
        write_parquet([read_run(make_run(tmp_path / "run"))], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_of_images_has_no_steps(tmp_path: Path) -> None:
    run = read_run(make_classification_run(tmp_path / "images"))
    assert list(long_tables([run])) == ["rounds", "clients"]
    assert json.dumps(long_tables([run]))  # plain values
