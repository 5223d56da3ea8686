"""Read series from npz archives, without pickled objects."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.whole_file import write_whole
from fedproto_app.data.clock import Clock, Matrix
from fedproto_app.data.format import Format, Source, by_name
from fedproto_app.data.npz_archive import Archive, open_archive
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings


def load_npz(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the clients of an archive.

    The archive has ``values`` [T, N] with optional ``names`` [N], or 1-D arrays of any lengths,
    each named after a client, whose series all begin at position 0, or it was written by
    `save_series`.
    """
    path = Path(settings.path)
    with open_archive(path) as archive:
        if "lengths" in archive.names:
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
    """Write series that `load_npz` reads, for this user alone.

    values: [sum of lengths]. names, lengths, starts: [N]. clocks: [N, 6] int64, the numbers of
    `Clock`, all 0 without a clock. These are saved only with columns known in advance: columns [k],
    the same for all clients, known [sum of rows, k] and rows [N].
    """
    numbers = [client.clock.numbers() if client.clock else (0,) * 6 for client in clients]
    arrays: dict[str, NDArray[np.generic]] = {}
    if columns := clients[0].columns:
        arrays = {
            "columns": np.array(columns, dtype=np.str_),
            "known": np.concatenate([client.known for client in clients]),
            "rows": np.array([len(client.known) for client in clients], dtype=np.int64),
        }
    content = io.BytesIO()
    np.savez(
        content,
        allow_pickle=False,
        values=np.concatenate([client.values for client in clients]),
        names=np.array([client.name for client in clients], dtype=np.str_),
        lengths=np.array([len(client.values) for client in clients], dtype=np.int64),
        starts=np.array([client.start for client in clients], dtype=np.int64),
        clocks=np.array(numbers, dtype=np.int64),
        **arrays,
    )
    write_whole(path, content.getvalue(), private=True, concurrent=True)


def _saved_series(archive: Archive) -> Iterator[ClientSeries]:
    known_arrays = ["columns", "known", "rows"]
    has_known = "columns" in archive.names
    required = ["values", "names", "lengths", "starts", "clocks", *known_arrays * has_known]
    archive.require_names(required, [])
    values = archive.column("values", "f").astype(np.float64, copy=False)
    lengths = archive.column("lengths", "i").astype(np.int64)
    count = len(lengths)
    names, starts = archive.texts_of("names", count, "lengths"), archive.column("starts", "i")
    clocks = archive.array("clocks")
    is_clocks = clocks.shape == (count, 6) and clocks.dtype.kind == "i"
    if (lengths < 0).any() or lengths.sum() != len(values) or len(starts) != count or not is_clocks:
        raise DataError(f"{archive.path}: its arrays do not fit together")
    assert names is not None  # required above
    columns: tuple[str, ...] = ()
    blocks: list[Matrix] = [np.empty((0, 0))] * count
    if has_known:
        columns, blocks = _saved_known(archive, count)
    parts = np.split(values, np.cumsum(lengths))[:-1]
    clients = zip(names, parts, starts, clocks, blocks, strict=True)
    for name, part, start, of_clock, block in clients:
        try:
            clock = Clock.from_numbers(of_clock) if of_clock.any() else None
        except ValueError:
            raise DataError(f"{archive.path}: its arrays do not fit together") from None
        yield ClientSeries(str(name), part, int(start), clock=clock, known=block, columns=columns)


def _saved_known(archive: Archive, count: int) -> tuple[tuple[str, ...], list[Matrix]]:
    """Return the names of the columns known in advance, and each client's values in them."""
    cells = archive.numbers("known", 2, "time steps × columns").astype(np.float64)
    columns = tuple(map(str, archive.column("columns", "U")))
    rows = archive.column("rows", "i").astype(np.int64)
    if (
        len(rows) != count
        or (rows < 0).any()
        or cells.shape != (rows.sum(), len(columns))
        or len(set(columns)) < len(columns)
    ):
        raise DataError(f"{archive.path}: its columns known in advance do not fit together")
    return columns, np.split(cells, np.cumsum(rows))[:-1]


FORMAT = Format((Source("npz", "series", load_npz),), "an .npz file", by_name(".npz"))
