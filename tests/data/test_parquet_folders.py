"""Folders of Parquet files: one per client, or parts of a long table; damaged files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data import files
from fedproto_app.data.recognition import reading_of
from tests.data.test_formats import FIRST, FRAME, LONG, load, require_the_frame

pytest.importorskip("pyarrow")


def a_file_each(folder: Path) -> Path:
    for name in FRAME:
        FRAME[[name]].rename(columns={name: "load"}).to_parquet(folder / f"{name}.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".south.parquet").write_bytes(b"no Parquet")
    return folder


def parts(folder: Path, *ends: int, **columns: Any) -> Path:
    """`LONG` in files that end with these rows, and one with the rest."""
    for number, frame in enumerate(np.split(np.arange(len(LONG)), ends)):
        LONG.iloc[frame].assign(**columns).to_parquet(folder / f"part-{number}.parquet")
    return folder


def test_a_file_each(tmp_path: Path) -> None:
    reading = reading_of(a_file_each(tmp_path))
    assert (reading.source, reading.settings) == ("parquet-folder", {})
    require_the_frame(load(tmp_path, source="parquet-folder"))
    assert list(load(tmp_path, source="parquet-folder", clients="south")) == ["south"]
    first = load(tmp_path, source="parquet-folder", max_steps=2)
    assert first["south"].values.tolist() == [10, 20]


@pytest.mark.parametrize("ends", [(), (6,), (3, 8)], ids=["one", "a client each", "cut anywhere"])
def test_parts_of_a_long_table(tmp_path: Path, ends: tuple[int, ...]) -> None:
    reading = reading_of(parts(tmp_path, *ends))
    assert (reading.source, reading.settings) == ("long-parquet", {})
    require_the_frame(load(tmp_path, source="long-parquet"))
    assert list(load(tmp_path, source="long-parquet", clients="south")) == ["south"]


def test_columns_are_chosen(tmp_path: Path) -> None:
    (long := tmp_path / "long").mkdir()
    names = {"unique_id": "site", "ds": "when", "y": "load"}
    for part in (0, 1):
        rows = LONG.iloc[6 * part : 6 * part + 6].assign(rain=9.0)
        rows.rename(columns=names).to_parquet(long / f"{part}.pq")
    settings = {"client_column": "site", "time_column": "when", "columns": "load"}
    require_the_frame(load(long, source="long-parquet", **settings))
    (wide := tmp_path / "wide").mkdir()
    for name in FRAME:
        FRAME[[name]].assign(rain=9.0).rename(columns={name: "load"}).to_parquet(
            wide / f"{name}.parquet"
        )
    with pytest.raises(DataError, match=r"2 columns of values \(load, rain\), but source parquet-"):
        load(wide, source="parquet-folder")
    require_the_frame(load(wide, source="parquet-folder", columns="load"))
    with pytest.raises(SettingsError, match=r"data\.decimal = 'comma': .*not for 'parquet-folder'"):
        load(wide, source="parquet-folder", decimal="comma")


def test_times_of_their_own(tmp_path: Path) -> None:
    FRAME[["north"]].to_parquet(tmp_path / "north.parquet")
    later = FRAME[["south"]].set_axis(FRAME.index + pd.Timedelta(hours=2)).rename_axis("time")
    later.to_parquet(tmp_path / "south.parquet")
    clients = load(tmp_path, source="parquet-folder")
    assert [client.start for client in clients.values()] == [FIRST, FIRST + 2]


def damaged(folder: Path) -> Path:
    path = folder / "south.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    return folder


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, r"south\.parquet: not a readable Parquet file"),
        (
            lambda folder: FRAME[["south"]].reset_index(drop=True).to_parquet(folder / "z.parquet"),
            r"z\.parquet has no time column, but .*north\.parquet has one",
        ),
        (
            lambda folder: (
                FRAME[["south"]]
                .set_axis(pd.date_range("2024-03-04", periods=6, freq="90min", name="time"))
                .to_parquet(folder / "z.parquet")
            ),
            r"z\.parquet: .* mostly 1:30:00 apart, but the step of all clients is 1:00:00",
        ),
        (
            lambda folder: (
                FRAME[["south"]].tz_localize("Europe/Berlin").to_parquet(folder / "z.parquet")
            ),
            r"z\.parquet has times with an offset from UTC, but .*north\.parquet without",
        ),
        (
            lambda folder: (
                FRAME[["south"]].astype(str).replace("20.0", "x").to_parquet(folder / "z.parquet")
            ),
            r"z\.parquet: column 'south', row 2: 'x' is not a number",
        ),
        (
            lambda folder: FRAME[["south"]].iloc[:0].to_parquet(folder / "z.parquet"),
            r"z\.parquet: no row in it",
        ),
        (
            lambda folder: FRAME[["south"]].to_parquet(folder / "south.pq"),
            "two clients are named 'south'",
        ),
    ],
)
def test_damaged_files_of_clients(tmp_path: Path, spoil: Any, message: str) -> None:
    spoil(a_file_each(tmp_path))
    with pytest.raises(DataError, match=message):
        load(tmp_path, source="parquet-folder")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: FRAME.to_parquet(folder / "x.parquet"), "which column holds the clients'"),
        (
            lambda folder: LONG.iloc[:1].to_parquet(folder / "x.parquet"),
            r"client 'north'.*x\.parquet, row 1",
        ),
        (
            lambda folder: LONG.assign(y="?").to_parquet(folder / "x.parquet"),
            r"x\.parquet: column 'y', row 1: '\?' is not a number",
        ),
        (
            lambda folder: LONG.assign(unique_id=None).to_parquet(folder / "x.parquet"),
            r"x\.parquet: column 'unique_id', row 1: no client is named",
        ),
        (
            lambda folder: LONG.assign(ds=pd.NaT).to_parquet(folder / "x.parquet"),
            r"x\.parquet: column 'ds', row 1: expected a time, got nothing",
        ),
        (
            lambda folder: LONG.assign(ds=LONG["ds"].dt.tz_localize("UTC")).to_parquet(
                folder / "x.parquet"
            ),
            r"x\.parquet has times with an offset from UTC, but .*part-0\.parquet without",
        ),
        (lambda folder: (folder / "x.parquet").write_bytes(b"PAR1"), r"x\.parquet: not a readable"),
    ],
)
def test_damaged_parts(tmp_path: Path, spoil: Any, message: str) -> None:
    spoil(parts(tmp_path, 6))
    with pytest.raises(DataError, match=message):
        load(tmp_path, source="long-parquet")


def test_parts_that_count_in_different_ways(tmp_path: Path) -> None:
    for name, times in (("a", LONG["ds"]), ("b", range(12))):
        LONG.assign(ds=times).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"b\.parquet|column 'ds'"):
        load(tmp_path, source="long-parquet")
    with pytest.raises(DataError, match=r"b\.parquet counts its steps, but .*a\.parquet has times"):
        load(tmp_path, source="long-parquet", time_unit="step")


def test_files_outside_or_deeper_are_not_read(tmp_path: Path) -> None:
    (folder := tmp_path / "data").mkdir()
    (folder / "site=north").mkdir()
    LONG.to_parquet(folder / "site=north" / "0.parquet")
    with pytest.raises(DataError, match=r"holds no \.parquet file; folders in it, such as 'site="):
        load(folder, source="long-parquet")
    secret = tmp_path / "secret.parquet"
    LONG.to_parquet(secret)
    (folder / "link.parquet").symlink_to(secret)
    for source in ("long-parquet", "parquet-folder"):
        with pytest.raises(
            DataError, match=r"link\.parquet: a link to .*, outside the data folder"
        ):
            load(folder, source=source)


def test_many_small_files_may_hold_too_much(tmp_path: Path, monkeypatch: Any) -> None:
    """Each part fits, at 64 + 8 + 8 bytes per row, but 12 of the 24 rows together do not."""
    parts(tmp_path, *range(1, 12))
    monkeypatch.setattr(files, "most_bytes", lambda: 200)
    assert load(tmp_path / "part-0.parquet", source="long-parquet")
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(tmp_path, source="long-parquet")
