"""Read series from a pandas DataFrame, by the code that reads tables from files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.core.errors import DataError
from fedproto_app.data.array_source import save_series
from fedproto_app.data.clock import look_like_times
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import checked_clients
from fedproto_app.data.table import TIME_NAMES, ColumnSelector, Head, Table, table_of
from fedproto_app.data.table_source import CLIENT_NAMES, load_long, load_wide
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from pandas import DataFrame

WHERE = "the frame"
# Arguments in place of settings that read files.
_ARGUMENTS = {
    "data.client-column": "id_col",
    "data.time-column": "time_col",
    "data.columns": "target_col",
}
_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # 20140131
_LOOKED_AT = 50  # rows, to tell counts since 1970 from numbers of steps


def series_of_frame(
    frame: DataFrame, id_col: str = "", time_col: str = "", target_col: str = ""
) -> list[ClientSeries]:
    """Return the clients of a frame, in its order; NaN is a missing value.

    A frame is long if id_col is given or a column has a usual name of clients, such as unique_id;
    times and values are then in time_col and target_col, or in columns with usual names, such as ds
    and y. Otherwise every column is a client, and the times are the index, time_col or a column
    with a usual name. Without times rows are counted. Raises `DataError` as for a file.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"{WHERE} is a {type(frame).__name__}, expected a pandas DataFrame")
    flat = _with_times(_with_index_as_columns(frame))
    names = [str(name) for name in flat.columns]
    if not len(flat) or not names:
        raise DataError(f"{WHERE} has {len(flat)} rows and {len(names)} columns")
    is_long = bool(id_col) or any(name.lower() in CLIENT_NAMES for name in names)
    if target_col and not is_long:
        raise DataError(f"target_col = {target_col!r}: for long frames; name id_col as well")
    flat.columns, flat.index = pd.RangeIndex(len(names)), pd.RangeIndex(len(flat))
    head = Head(WHERE, names, _time_place(names, flat))

    def read(_: Path, select_columns: ColumnSelector, __: DataSettings) -> Table:
        columns = select_columns(head)
        return table_of(head, columns, len(flat), lambda _: [flat[columns.read]], "auto", first=0)

    choice: dict[str, object] = {"client-column": id_col, "time-column": time_col, "path": WHERE}
    choice |= {"columns": [target_col]} if target_col else {}
    choice |= {"time-unit": "step"} if _counts_steps(flat, head, time_col) else {}
    settings = DataSettings.model_validate(choice)
    try:
        clients = load_long(settings, read) if is_long else load_wide(settings, read)
        return checked_clients(clients, settings, WHERE)
    except DataError as error:
        message = str(error)
        for key, argument in _ARGUMENTS.items():
            message = message.replace(key, argument)
        if not is_long and message.endswith("is not a number"):
            message += "; of a long frame, name the columns: id_col, time_col, target_col"
        raise DataError(message) from None


def saved_series(clients: Sequence[ClientSeries], folder: Path) -> Path:
    """Write the series into a file of the folder that is named after its content; return it.

    Runs on equal series read the same file, so that they count as runs on the same data.
    """
    digest = sha256()
    for client in clients:
        clock = "" if client.clock is None else client.clock.label
        about = f"{client.name}\0{client.start}\0{len(client.values)}\0{clock}\0"
        digest.update(about.encode("utf-8", "surrogatepass") + client.values.tobytes())
    path = folder / f"frame-{digest.hexdigest()[:8]}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_series(clients, path)
    return path


def _with_index_as_columns(frame: DataFrame) -> DataFrame:
    """Return a shallow copy whose first columns are the index, unless it only numbers the rows."""
    index = frame.index
    is_named = any(str(name).lower() in {*CLIENT_NAMES, *TIME_NAMES} for name in index.names)
    if index.nlevels == 1 and index.dtype.kind in "iu" and not is_named:
        return frame.copy(deep=False)
    names = ["ds" if name is None else name for name in index.names]
    return frame.reset_index(names=names, allow_duplicates=True)


def _with_times(frame: DataFrame) -> DataFrame:
    """Return the frame with its periods as the times at which they begin."""
    import pandas as pd

    columns = {
        place: column.dt.to_timestamp() if isinstance(column.dtype, pd.PeriodDtype) else column
        for place, (_, column) in enumerate(frame.items())
    }
    return pd.DataFrame(columns, index=frame.index).set_axis(frame.columns, axis=1)


def _time_place(names: Sequence[str], frame: DataFrame) -> int | None:
    """Return the place of the time column: by its name, else the only column of a time type."""
    by_name = [place for place, name in enumerate(names) if name.lower() in TIME_NAMES]
    of_type = [place for place in range(len(names)) if frame[place].dtype.kind == "M"]
    if by_name:
        return next((place for place in by_name if place in of_type), by_name[0])
    return of_type[0] if len(of_type) == 1 else None


def _counts_steps(frame: DataFrame, head: Head, time_col: str) -> bool:
    """Return whether the times are whole numbers, but neither since 1970 nor dates in digits."""
    place = head.names.index(time_col) if time_col in head.names else head.times
    if place is None or frame[place].dtype.kind not in "iu":
        return False
    texts = list(map(str, sorted(set(frame[place].head(_LOOKED_AT).tolist()))))
    return not (look_like_times(texts) or all(map(_DATE.fullmatch, texts)))
