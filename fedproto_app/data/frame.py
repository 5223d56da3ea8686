"""Read series from a pandas DataFrame, with the code that reads tables from files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data.clock import Clock, are_years, look_like_times
from fedproto_app.data.formats.npz import save_series
from fedproto_app.data.known_columns import KnownTable
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import checked_clients
from fedproto_app.data.table import TIME_NAMES, FrameFile, Head, time_place
from fedproto_app.data.table_source import (
    CLIENT_NAMES,
    TableFormat,
    load_covariates,
    load_long,
    load_wide,
)
from fedproto_app.settings import DataSettings, settings_from
from fedproto_app.settings.choice import text_of

if TYPE_CHECKING:
    from datetime import tzinfo

    from pandas import DataFrame, Series

WHERE = "the frame"
# The arguments that take the place of settings for files.
_ARGUMENTS = {
    "data.client-column": "id_col",
    "data.time-column": "time_col",
    "data.columns": "target_col",
}
_OF_KNOWN = tuple(
    f"data.{key}" for key in ("known", "covariates", "holidays", "calendar", "time-zone")
)
_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # 20140131
_LOOKED_AT = 50  # rows that decide between counts since 1970 and numbers of steps


def series_of_frame(
    frame: DataFrame,
    id_col: str = "",
    time_col: str = "",
    target_col: str = "",
    *,
    data: DataSettings | None = None,
) -> list[ClientSeries]:
    """Return the clients of a frame, in its order. NaN is a missing value.

    A frame is long if id_col is given, or if a column has a usual name for clients, such as
    unique_id. Times and values are then in time_col and target_col, or in columns with usual names,
    such as ds and y. Otherwise every column is a client, and the times are the index, time_col or a
    column with a usual name. Without times, rows are counted. data: settings that name the columns
    known in advance of a long frame. Raises `DataError` as for a file.
    """
    data = data or DataSettings()
    form = _form_of(frame, id_col, time_col)
    flat, names = form.flat, form.names
    if target_col and not form.is_long:
        raise DataError(f"target_col = {target_col!r}: only for long frames; name id_col as well")
    if data.known and not data.covariates and not form.is_long:
        raise DataError(
            f"data.known = {data.known!r}: for long frames; name id_col as well, or give these "
            "columns in a table of their own, data.covariates"
        )
    if form.ids is not None:
        _require_distinct(flat[form.ids], names[form.ids])
    choice: dict[str, object] = {"path": WHERE}
    choice |= {"client-column": [id_col]} if id_col else {}
    choice |= {"time-column": [time_col]} if time_col else {}
    choice |= {"columns": [target_col]} if target_col else {}
    choice |= {"known": data.known, "covariates": data.covariates} if form.is_long else {}
    choice |= {"time-unit": form.unit}
    try:
        settings = settings_from({f"data.{key}": value for key, value in choice.items()}).data
        load = load_long if form.is_long else load_wide
        clients = load(settings, form.tables)
        return checked_clients(clients, settings, WHERE)
    except (DataError, SettingsError) as error:
        message = str(error)
        for key, argument in _ARGUMENTS.items():
            message = message.replace(key, argument)
        if not form.is_long and message.endswith("is not a number"):
            message += "; of a long frame, name the columns: id_col, time_col, target_col"
        raise DataError(message) from None


def future_of_frame(frame: DataFrame, id_col: str = "", time_col: str = "") -> KnownTable:
    """Return a frame of columns known in advance as a table with a row for each client and time.

    A frame without a column of clients applies to all clients. Other columns are ignored.
    """

    def read(settings: DataSettings, clock: Clock | None) -> Iterator[ClientSeries]:
        form = _form_of(frame, id_col, time_col, utc=None if clock is None else clock.utc)
        changes = {
            "client_column": text_of([id_col] if id_col else []),
            "time_column": text_of([time_col] if time_col else []),
            "time_unit": form.unit,
        }
        yield from load_covariates(settings.model_copy(update=changes), clock, form.tables)

    return KnownTable("the frame of the future", "future", read)


def known_settings(settings: Mapping[str, object]) -> DataSettings:
    """Return the settings that give columns known in advance, from a run's with dotted keys."""
    return settings_from({key: settings[key] for key in _OF_KNOWN if key in settings}).data


@dataclass(frozen=True)
class Form:
    """A frame with its index as columns, and how it writes ids and times.

    flat: the frame with numbered columns and rows. names: the names of its columns, as texts.
    labels: the names in the frame itself. is_long: whether it has a row for each client and time.
    ids: the place of a long frame's column of clients, None if it is missing. zone: the time zone
    of its times, or None. unit: what times count, such as year. times: the type of the column of
    times, or None.
    """

    flat: DataFrame
    names: list[str]
    labels: Any
    is_long: bool
    ids: int | None
    zone: tzinfo | None
    unit: str
    times: Any

    @property
    def tables(self) -> TableFormat:
        """A format that opens this frame, whatever path it is given."""
        head = Head(WHERE, self.names, time_place(self.names, self.flat))
        opened = FrameFile(self.flat, WHERE, head)
        return TableFormat("frame", re.compile("$."), "", lambda *_: opened)

    def put_on(self, forecasts: DataFrame) -> DataFrame:
        """Return forecasts whose columns unique_id and ds are written as in the frame."""
        import numpy as np
        import pandas as pd

        written = pd.Series(self.labels) if self.ids is None else self.flat[self.ids]
        names = self.names if self.ids is None else _names_in(written).tolist()
        places = {name: place for place, name in enumerate(names)}
        ids = written.iloc[[places[name] for name in forecasts["unique_id"]]].infer_objects()
        times = forecasts["ds"]
        if self.zone is not None and times.dtype.kind == "M":
            if times.dt.tz is None:  # local days: in autumn, an hour occurs twice
                is_summer = np.ones(len(times), dtype=np.bool_)
                shift = "shift_forward"
                times = times.dt.tz_localize(self.zone, ambiguous=is_summer, nonexistent=shift)
            times = times.dt.tz_convert(self.zone)
        if isinstance(self.times, pd.PeriodDtype) and times.dtype.kind == "M":
            times = times.dt.to_period(self.times.freq)
        elif self.unit == "year":
            times = times.dt.year.astype(self.times)
        return forecasts.assign(unique_id=ids.array, ds=times)


def labels_of(frame: DataFrame, id_col: str = "", time_col: str = "") -> Form:
    """Return how a frame writes ids and times. `series_of_frame` must be able to read it."""
    form = _form_of(frame, id_col, time_col)
    if form.ids is None:
        return replace(form, flat=form.flat.iloc[:0])
    is_first = ~_names_in(form.flat[form.ids]).duplicated()
    return replace(form, flat=form.flat.loc[is_first, [form.ids]])


def _form_of(frame: Any, id_col: str, time_col: str, utc: bool | None = None) -> Form:
    """Return the frame's form. Raises `DataError` if it is no frame, empty or ambiguous.

    utc: whether times with a zone are moments rather than days. By default, the frame shows it.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame) and callable(getattr(frame, "to_pandas", None)):
        try:
            frame = frame.to_pandas()
        except ImportError:  # polars needs pyarrow for it
            frame = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    if not isinstance(frame, pd.DataFrame):
        raise DataError(
            f"{WHERE} is a {type(frame).__name__}, expected a DataFrame of pandas or polars"
        )
    indexed = _with_index_as_columns(frame)
    flat = _with_times(indexed)
    labels = flat.columns
    names = [str(name) for name in labels]
    if not len(flat) or not names:
        raise DataError(f"{WHERE} has {len(flat)} rows and {len(names)} columns")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{WHERE}: two columns are named {twice!r}; rename one of them")
    flat.columns, flat.index = pd.RangeIndex(len(names)), pd.RangeIndex(len(flat))
    usual = (place for place, name in enumerate(names) if name.lower() in CLIENT_NAMES)
    ids = names.index(id_col) if id_col in names else None if id_col else next(usual, None)
    times = names.index(time_col) if time_col in names else time_place(names, flat)
    zone = None
    if times is not None and isinstance(flat[times].dtype, pd.DatetimeTZDtype):
        zone = flat[times].dt.tz
        local = flat[times].dt.tz_localize(None)
        is_daily = (local - local.dt.normalize()).nunique() == 1
        if utc is not True and is_daily and (len(local) > 1 or utc is False):
            flat[times] = local  # when clocks change, days differ in length in UTC
    unit = "auto" if times is None else _unit_of(names[times], flat[times])
    kind = None if times is None else indexed.dtypes.iloc[times]
    is_long = bool(id_col) or ids is not None
    return Form(flat, names, labels, is_long, ids, zone, unit, kind)


def _names_in(column: Series) -> Series:
    """Return the names of the clients in a column, in the same way as `Table.clients`."""
    return column.astype(str).str.strip()


def _require_distinct(column: Series, title: str) -> None:
    """Raise `DataError` if two ids would be the same client, such as 2 and "2"."""
    import pandas as pd

    pairs = pd.DataFrame({"id": column, "name": _names_in(column)}).drop_duplicates()
    if (twice := pairs["name"].duplicated()).any():
        name = pairs["name"][twice].iloc[0]
        first, second = pairs["id"][pairs["name"] == name].tolist()[:2]
        raise DataError(
            f"{WHERE}: column {title!r} holds {first!r} and {second!r}, which would both be client "
            f"{name!r}; write each id in one way"
        )


def saved_series(clients: Sequence[ClientSeries], folder: Path) -> Path:
    """Write the series into a file in the folder and return its path.

    The file's name is derived from its content. So runs on equal series read the same file, and
    count as runs on the same data.
    """
    digest = sha256()
    for client in clients:
        clock = "" if client.clock is None else client.clock.label
        about = f"{client.name}\0{client.start}\0{len(client.values)}\0{clock}\0"
        digest.update(about.encode("utf-8", "surrogatepass") + client.values.tobytes())
        if client.columns:
            about = "\0".join([*client.columns, f"{len(client.known)}\0"])
            digest.update(about.encode("utf-8", "surrogatepass") + client.known.tobytes())
    path = folder / f"frame-{digest.hexdigest()[:8]}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_series(clients, path)
    return path


def _with_index_as_columns(frame: DataFrame) -> DataFrame:
    """Return a shallow copy whose first columns are the index, unless it only numbers the rows.

    A level of the index is dropped if a column repeats it, as after `set_index(…, drop=False)`.
    """
    columns: list[Any] = list(frame.columns)
    for name in [name for name in frame.index.names if name is not None]:
        if columns.count(name) == 1:
            level = frame.index.get_level_values(frame.index.names.index(name))
            if (level == frame[name].array).all():
                frame = frame.reset_index(name, drop=True)
    index = frame.index
    is_named = any(str(name).lower() in {*CLIENT_NAMES, *TIME_NAMES} for name in index.names)
    if index.nlevels == 1 and index.dtype.kind in "iu" and not is_named:
        return frame.copy(deep=False)
    names = ["ds" if name is None else name for name in index.names]
    return frame.reset_index(names=names, allow_duplicates=True)


def _with_times(frame: DataFrame) -> DataFrame:
    """Return the frame with each period replaced by the time at which it begins."""
    import pandas as pd

    columns = {
        place: column.dt.to_timestamp() if isinstance(column.dtype, pd.PeriodDtype) else column
        for place, (_, column) in enumerate(frame.items())
    }
    return pd.DataFrame(columns, index=frame.index).set_axis(frame.columns, axis=1)


def _unit_of(name: str, times: Series) -> str:
    """Return what a column of times counts: "year", "step", or else "auto".

    Years and steps are whole numbers that are neither counts since 1970 nor dates in digits.
    """
    if times.dtype.kind not in "iu":
        return "auto"
    texts = list(map(str, sorted(set(times.head(_LOOKED_AT).tolist()))))
    if are_years(name, texts):
        return "year"
    return "auto" if look_like_times(texts) or all(map(_DATE.fullmatch, texts)) else "step"
