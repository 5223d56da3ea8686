"""Read series from npz archives, without pickled objects."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.core.whole_file import write_whole
from fedproto_app.data.clock import Clock
from fedproto_app.data.format import Format, Source, by_name
from fedproto_app.data.npz_archive import Archive, open_archive
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings


def load_npz(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the clients of an archive.

    There are three forms of archive: it holds ``values`` [T, N] and optionally ``names`` [N], it
    holds for each client a 1-D array named after the client, or `save_series` wrote it. The
    1-D arrays may differ in length, and all begin at position 0.
    """
    path = Path(settings.path)
    with open_archive(path) as archive:
        if "series" in archive.names:
            yield from _saved_series(archive)
            return
        if "values" not in archive.names:
            for name in archive.names:
                numbers = archive.numbers(name, 1, "1-D, a client each")
                yield ClientSeries(name, numbers.astype(np.float64))
            return
        if unexpected := set(archive.names) - {"values", "names"}:
            raise DataError(
                f"{path}: beside 'values' only 'names' is expected, "
                f"found {', '.join(sorted(unexpected))}"
            )
        values = archive.numbers("values", 2, "time steps × clients").astype(np.float64)
        names = [f"client-{number:03d}" for number in range(values.shape[1])]
        if "names" in archive.names:
            names = [str(name) for name in archive.array("names").ravel()]
        if len(names) != values.shape[1]:
            raise DataError(f"{path}: {len(names)} names for {values.shape[1]} columns of 'values'")
        for name, column in zip(names, values.T, strict=True):
            yield ClientSeries(name, column)


def save_series(clients: Sequence[ClientSeries], path: Path) -> None:
    """Write series into a file that `load_npz` reads, and that only this user may read.

    These are the arrays. values: [sum of lengths]. known: [sum of rows, k], the columns known in
    advance. series: [N], a JSON list for each client: its name, start, length, number of rows of
    known columns, and the numbers of its clock or null. columns: [k], the names of the known
    columns, the same for all clients.
    """
    about = [
        [c.name, c.start, len(c.values), len(c.known), c.clock.numbers() if c.clock else None]
        for c in clients
    ]
    content = io.BytesIO()
    np.savez(
        content,
        allow_pickle=False,
        values=np.concatenate([client.values for client in clients]),
        known=np.concatenate([client.known for client in clients]),
        columns=np.array(clients[0].columns, dtype=np.str_),
        series=np.array(list(map(json.dumps, about)), dtype=np.str_),
    )
    write_whole(path, content.getvalue(), private=True, concurrent=True)


def _saved_series(archive: Archive) -> Iterator[ClientSeries]:
    archive.require_names(["values", "known", "columns", "series"], [])
    values = archive.column("values", "f").astype(np.float64, copy=False)
    known = archive.numbers("known", 2, "time steps × columns").astype(np.float64)
    columns = tuple(map(str, archive.column("columns", "U")))
    fault = DataError(f"{archive.path}: its arrays do not fit together")
    if not known.shape[1] == len(columns) == len(set(columns)):
        raise fault
    first, first_row = 0, 0
    for text in archive.column("series", "U"):
        try:
            name, start, length, rows, numbers = json.loads(text)
            end, end_row = first + length, first_row + rows
            clock = None if numbers is None else Clock.from_numbers(numbers)
            series = ClientSeries(str(name), values[first:end], int(start), clock=clock)
        except (ValueError, TypeError, OverflowError):
            raise fault from None
        yield replace(series, known=known[first_row:end_row], columns=columns)
        first, first_row = end, end_row
    if (first, first_row) != (len(values), len(known)):
        raise fault


FORMAT = Format((Source("npz", "series", load_npz),), "an .npz file", by_name(".npz"))
