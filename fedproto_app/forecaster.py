"""A forecaster with the methods of scikit-learn and the columns of Nixtla's libraries.

    forecaster = Forecaster(method="kindred", freq="h", horizon=24).fit(frame)
    forecaster.predict(level=[80, 95])

It trains one run (`fedproto_app.run`), which stays in ``run_``.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedproto_app.api import Run, run
from fedproto_app.core.errors import DataError, FedProtoError, SettingsError
from fedproto_app.experiments.simulation import OnRound
from fedproto_app.settings.reading import flat

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedproto_app.data.series import ClientSeries


@dataclass(eq=False)
class Forecaster:
    """Forecasts of many series, each a client that trains with the others.

    method: as in the settings (docs/methods.md). freq: the step of the series, as pandas writes it
    ("h", "30min", "D"), or 1 for counted steps; None: not checked. horizon: values forecast at
    once; intervals reach so far. period, calendar: None: by the step of the data. model: as for
    `run`. settings: further settings, with dotted keys or nested. folder: for the runs; None: a
    temporary one, which is removed with the forecaster. on_round, progress: as for `run`.

    run_: the `Run` after `fit`.
    """

    method: str = "kindred"
    freq: str | int | None = None
    horizon: int = 1
    period: int | None = None
    calendar: str | None = None
    model: Any = None
    settings: Mapping[str, Any] | None = None
    folder: str | Path | None = None
    on_round: OnRound | None = None
    progress: bool = False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as scikit-learn does."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; raise `FedProtoError` for a name that is no parameter."""
        names = [field.name for field in fields(self)]
        for name, value in params.items():
            if name not in names:
                raise FedProtoError(f"{name!r} is no parameter; known are {', '.join(names)}")
            setattr(self, name, value)
        return self

    def fit(
        self, df: DataFrame, id_col: str = "", time_col: str = "", target_col: str = ""
    ) -> Self:
        """Train on the series of a frame, long or wide; columns as for `run`.

        Raises `FedProtoError` for data or parameters that cannot be used.
        """
        from fedproto_app.data.frame import series_of_frame

        if self.freq is not None:
            _require_step(series_of_frame(df, id_col, time_col, target_col), self.freq)
        changes: dict[str, Any] = {"method": self.method, "data__horizon": self.horizon}
        optional = {"data__period": self.period, "data__calendar": self.calendar}
        changes |= {key: value for key, value in optional.items() if value is not None}
        for key in flat(self.settings or {}):
            if key.replace(".", "__") in changes:
                name = key.removeprefix("data.")
                raise SettingsError(f"settings: {key} is the parameter {name} of the forecaster")
        self.run_: Run = run(
            df,
            {"output.dir": self._output(), "output.pictures": False, **(self.settings or {})},
            id_col=id_col,
            time_col=time_col,
            target_col=target_col,
            model=self.model,
            on_round=self.on_round,
            progress=self.progress,
            **changes,
        )
        self._columns = id_col, time_col, target_col
        return self

    def predict(
        self,
        h: int | None = None,
        level: Sequence[int] | int | None = None,
        new_df: DataFrame | None = None,
    ) -> DataFrame:
        """Forecast the next h values of every series; None: the horizon.

        level: the intervals to add, in percent, of 80 and 95. new_df: newer values of the same
        series, in columns as for `fit`. Returns the columns unique_id, ds and y_hat, and for each
        level lo and hi, such as lo-80 and hi-80; the first two have the names given to `fit`.
        """
        import numpy as np

        from fedproto_app.tasks.forecasting.metrics import LEVELS

        if not hasattr(self, "run_"):
            raise FedProtoError("predict: the forecaster has no run yet; call fit first")
        levels = np.atleast_1d([] if level is None else level).tolist()
        for percent in levels:
            if percent not in LEVELS:
                raise FedProtoError(f"level = {percent!r}: known are {', '.join(map(str, LEVELS))}")
        id_col, time_col, target_col = self._columns
        forecasts = self.run_.forecast(
            new_df, h, id_col=id_col, time_col=time_col, target_col=target_col
        )
        limits = [f"{side}-{percent}" for percent in levels for side in ("lo", "hi")]
        columns = {"unique_id": id_col or "unique_id", "ds": time_col or "ds"}
        return forecasts[["unique_id", "ds", "y_hat", *limits]].rename(columns=columns)

    def _output(self) -> str:
        """Return the folder of the runs."""
        if self.folder is not None:
            return str(self.folder)
        if not hasattr(self, "_temporary"):
            self._temporary = tempfile.mkdtemp(prefix="fedproto-")
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary


def _require_step(series: Sequence[ClientSeries], freq: str | int) -> None:
    """Raise `DataError` if the series have another step than freq."""
    import pandas as pd
    from pandas.tseries.frequencies import to_offset

    clock, start = next(
        ((client.clock, client.start) for client in series if client.clock is not None), (None, 0)
    )
    if isinstance(freq, int):
        if freq != 1 or clock is not None:
            have = "count by 1" if clock is None else "have times"
            raise DataError(f"freq = {freq}: the series {have}")
        return
    if clock is None:
        raise DataError(f"freq = {freq!r}: the series have no times, or one value each")
    try:
        offset = to_offset(freq)
    except ValueError:
        raise DataError(f"freq = {freq!r}: pandas knows no such step") from None
    step = pd.Timedelta(clock.step)
    first = pd.Timestamp("1970-01-01") + pd.Timedelta(clock.offset) + start * step
    if first + offset - first != step:
        raise DataError(
            f"freq = {freq!r}: the series have a step of {step}, from {first:%A, %Y-%m-%d %H:%M} on"
        )
