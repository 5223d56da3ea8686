"""The clients and columns of a site's files that are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings, SequenceSettings


def wide(folder: Path, max_clients: int = 0, **choice: Any) -> dict[str, list[float]]:
    file = folder / "wide.csv"
    file.write_text("note,a,when,b,c\nx,1,2024-01-01,2,inf\ny,3,2024-01-02,4,5\n")
    settings = DataSettings(source="wide-csv", path=str(file), max_clients=max_clients, **choice)
    return {client.name: client.values.tolist() for client in load_series(settings)}


def test_only_the_chosen_columns_are_read(tmp_path: Path) -> None:
    choice = {"clients": "b, a", "time_column": "when"}
    assert wide(tmp_path, **choice) == {"a": [1, 3], "b": [2, 4]}  # in the file's order
    assert wide(tmp_path, max_clients=1, **choice) == {"a": [1, 3]}
    with pytest.raises(DataError, match="column 'note', line 2: 'x' is not a number"):
        wide(tmp_path, time_column="when")
    with pytest.raises(DataError, match="infinite"):
        wide(tmp_path, clients="c", time_column="when")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"clients": "d"}, r"data\.clients: .*wide\.csv has no column 'd'; it has note, a"),
        ({"time_column": "day"}, r"data\.time-column: .* has no column 'day'; it has note, a"),
        ({"clients": "when", "time_column": "when"}, r"has no column 'when'; it has note, a, b"),
    ],
)
def test_a_missing_column_is_named(tmp_path: Path, choice: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        wide(tmp_path, **choice)


def test_of_a_folder_only_the_chosen_files_and_their_column_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("time,rain,load\n2024-01-01,0,1\n2024-01-02,0,2\n")
    (tmp_path / "broken.csv").write_text("")
    settings = DataSettings(source="csv-folder", path=str(tmp_path), clients="a,b", columns="load")
    values = {client.name: client.values.tolist() for client in load_series(settings)}
    assert values == {"a": [1, 2], "b": [1, 2]}
    ambiguous = settings.model_copy(update={"clients": "a", "columns": ""})
    with pytest.raises(DataError, match=r"2 columns of values .*choose it with data\.columns"):
        load_series(ambiguous)


def recordings(
    folder: Path, target: str = "charge", **choice: Any
) -> tuple[tuple[str, ...], list[float]]:
    (folder / "car.csv").write_text("stamp,v,note,i,charge\nmo,1,x,2,3\ntu,4,y,5,6\n")
    sequences = SequenceSettings(window=2, target=target)
    path = str(folder / "car.csv")
    pool = load_sequences(
        DataSettings(source="recordings", path=path, sequences=sequences, **choice)
    )
    return pool.dimensions, pool.sequences[0].ravel().tolist()


def test_columns_of_recordings_come_in_the_order_of_the_choice(tmp_path: Path) -> None:
    """Sites whose files differ in their columns' names and order make the same inputs."""
    assert recordings(tmp_path, columns="i,v") == (("i", "v"), [2, 1, 5, 4])
    with pytest.raises(DataError, match=r"data\.columns: .* has no column 'u'; it has stamp, v"):
        recordings(tmp_path, columns="u")
    with pytest.raises(DataError, match=r"data\.sequences\.target = ''"):
        recordings(tmp_path, columns="i", target="")
