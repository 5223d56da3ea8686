"""A forecaster with the methods of scikit-learn and the columns of Nixtla's libraries.

    forecaster = Forecaster(method="kindred", freq="h", horizon=24).fit(frame)
    forecaster.predict(level=[80, 95])

It trains one run (`fedproto_app.run`), which stays in ``run_``. A copy contains the run's models
and series. So does a forecaster that was written to a file and read by another process.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedproto_app.api import Run, run
from fedproto_app.core.errors import DataError, FedProtoError, SettingsError
from fedproto_app.core.whole_file import write_whole
from fedproto_app.experiments.simulation import OnRound
from fedproto_app.settings.reading import flat

if TYPE_CHECKING:
    from pandas import DataFrame
    from pandas.tseries.offsets import BaseOffset

    from fedproto_app.data.series import ClientSeries


@dataclass(eq=False)
class Forecaster:
    """Forecasts of many series, each a client that trains with the others.

    method: as in the settings (docs/methods.md). freq: the step of the series, as pandas writes it
    ("h", "30min", "B", "MS", "QE"), or 1 for counted steps. If it is None, the step is not checked.
    horizon: how many values a forecast predicts, with intervals. period, calendar: by default those
    that suit the step of the data. known: the frame's columns with values known in advance,
    such as a weather forecast. model: as for `run`. settings: further settings, with dotted keys or
    nested. folder: where runs are kept, by default a temporary folder, which is removed with the
    forecaster. on_round, progress: as for `run`.

    run_: the `Run` after `fit`. If `folder` is not set, a copy has a temporary folder with a part
    of the run: its settings, results, models and series, without what training needs.
    """

    method: str = "kindred"
    freq: str | int | BaseOffset | None = None
    horizon: int = 1
    period: int | None = None
    calendar: str | None = None
    known: Sequence[str] = ()
    model: object = None
    settings: Mapping[str, object] | None = None
    folder: str | Path | None = None
    on_round: OnRound | None = None
    progress: bool = False

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the parameters by name, as scikit-learn does."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: object) -> Self:
        """Set parameters by name. Raises `FedProtoError` if there is no such parameter."""
        names = [field.name for field in fields(self)]
        for name, value in params.items():
            if name not in names:
                raise FedProtoError(f"{name!r} is no parameter; known are {', '.join(names)}")
            setattr(self, name, value)
        return self

    def fit(
        self, df: DataFrame, id_col: str = "", time_col: str = "", target_col: str = ""
    ) -> Self:
        """Train on the series of a frame, long or wide, with columns as for `run`.

        Raises `FedProtoError` for data or parameters that cannot be used.
        """
        from fedproto_app.data.frame import known_settings, labels_of, series_of_frame

        offsets = [] if self.freq is None else _offsets(self.freq)
        changes: dict[str, Any] = {"method": self.method, "data__horizon": self.horizon}
        optional = {"data__period": self.period, "data__calendar": self.calendar}
        changes |= {key: value for key, value in optional.items() if value is not None}
        changes |= {"data__known": self.known} if self.known else {}
        if self.freq is not None:
            columns = {"data.known": self.known} if self.known else {}
            data = known_settings(flat(self.settings or {}) | columns)
            series = series_of_frame(df, id_col, time_col, target_col, data=data)
            _require_step(series, self.freq, offsets)
        for key in flat(self.settings or {}):
            if key.replace(".", "__") in changes:
                name = key.removeprefix("data.")
                raise SettingsError(f"settings: {key} is the parameter {name} of the forecaster")
        self._run = run(
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
        self._labels = labels_of(df, id_col, time_col)
        return self

    def predict(
        self,
        h: int | None = None,
        level: Sequence[int] | int | None = None,
        new_df: DataFrame | None = None,
        X_df: DataFrame | None = None,
    ) -> DataFrame:
        """Forecast the next h values of every series, by default as many as the horizon.

        level: the levels of intervals to add, in percent, from 1 to 99. new_df: the values up to
        now of clients that trained, in columns as for `fit`. X_df: the columns known in advance for
        the next h steps, as `future` of `Run.forecast`. Returns the columns unique_id, ds and
        y_hat, and lo and hi for each level, such as lo-80 and hi-80. The first two columns have the
        names given to `fit`, and are written as in the frame. Warnings name the clients of new_df
        that did not train, that have too few values, or whose values end before their training
        data. Raises `FedProtoError` if no client can be forecast.
        """
        import numpy as np

        if not hasattr(self, "_run"):
            raise FedProtoError("predict: the forecaster has no run yet; call fit first")
        levels = np.atleast_1d([] if level is None else level).tolist()
        id_col, time_col, target_col = self._columns
        forecasts = self.run_.forecast(
            new_df,
            h,
            future=X_df,
            levels=levels,
            id_col=id_col,
            time_col=time_col,
            target_col=target_col,
        )
        if new_df is None:
            forecasts = self._labels.put_on(forecasts)
        return forecasts.rename(
            columns={"unique_id": id_col or "unique_id", "ds": time_col or "ds"}
        )

    @property
    def run_(self) -> Run:
        """The run after `fit`."""
        return self._run

    def _output(self) -> str:
        """Return the folder of the runs."""
        return str(self._temporary_folder() if self.folder is None else self.folder)

    def _temporary_folder(self) -> Path:
        """Return a folder that is removed with the forecaster."""
        if not hasattr(self, "_temporary"):
            self._temporary = Path(tempfile.mkdtemp(prefix="fedproto-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy needs. This includes the run's files if its folder is temporary."""
        state = {**self.__dict__}
        temporary = state.pop("_temporary", None)
        if "_run" in state and temporary is not None and self.run_.path.is_relative_to(temporary):
            state["_files"] = _packed(state.pop("_run"))
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        files = state.pop("_files", None)
        self.__dict__ |= state
        if isinstance(files, dict):
            self._run = _unpacked(files, self._temporary_folder())


# Files in a run's folder that `Run` reads. Checkpoints, reports and pictures are not among them.
_PARTS = (
    *("summary.json", "settings.toml", "clients.csv", "rounds.jsonl"),
    *("state/*/settings.toml", "state/*/shape.json"),
)
_STEPS_COMPARED = 30  # how many steps are compared with freq, enough for all lengths of months
_RUN, _SERIES, _COVARIATES = "run", "series.npz", "covariates"  # names in the folder of a copy


def _packed(run: Run) -> dict[str, bytes]:
    """Return the content of the files that forecasts need, by path in the folder of a copy.

    Raises `FedProtoError` if the files are gone.
    """
    from fedproto_app.node.state_file import FILE_NAME, StateFile

    try:
        paths = [path for part in _PARTS for path in sorted(run.path.glob(part))]
        files = {f"{_RUN}/{path.relative_to(run.path)}": path.read_bytes() for path in paths}
        for path in sorted(run.path.glob(f"state/*/{FILE_NAME}")):
            content = StateFile(path.parent).without_training()
            files[f"{_RUN}/{path.relative_to(run.path)}"] = content
        files[_SERIES] = Path(run.settings.data.path).read_bytes()
        if run.settings.data.covariates:
            table = Path(run.settings.data.covariates)
            for path in sorted(table.iterdir()) if table.is_dir() else [table]:
                files[f"{_COVARIATES}/{path.name}"] = path.read_bytes()
    except OSError as error:
        raise FedProtoError(
            f"the forecaster's models cannot be copied: {error.filename}: {error.strerror}; fit it "
            "again, or with a folder, where its runs stay"
        ) from None
    return files


def _unpacked(files: Mapping[str, bytes], folder: Path) -> Run:
    """Write the files into the folder, for this user alone, and return the run that reads them."""
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise FedProtoError(f"{name!r}: a file of the forecaster lies outside its folder")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content, private=True)
    unpacked = Run(folder / _RUN)
    data, places = unpacked.settings.data, {"path": str(folder / _SERIES)}
    if data.covariates:
        table = folder / _COVARIATES / Path(data.covariates).name
        # A table of several files lies in _COVARIATES itself.
        places["covariates"] = str(table if table.exists() else table.parent)
    data = data.model_copy(update=places)
    unpacked.settings = unpacked.settings.model_copy(update={"data": data})
    return unpacked


def _offsets(freq: str | int | BaseOffset) -> list[BaseOffset]:
    """Return the steps that this text may mean in pandas, none for an int.

    M, Q and Y, which pandas uses for periods, may mean steps from start to start or from end to
    end. Raises `DataError` if pandas knows no such step.
    """
    from pandas.tseries.frequencies import to_offset

    if isinstance(freq, int):
        return []
    for texts in ([freq], [f"{freq}S", f"{freq}E"]):
        with suppress(ValueError):
            return [to_offset(text) for text in texts]
    lower = str(freq).lower()
    with suppress(ValueError):
        to_offset(lower)
        raise DataError(f"freq = {freq!r}: pandas writes {lower!r}")  # older versions had H for h
    raise DataError(f"freq = {freq!r}: pandas knows no such step")


def _require_step(
    series: Sequence[ClientSeries], freq: str | int | BaseOffset, offsets: Sequence[BaseOffset]
) -> None:
    """Raise `DataError` if the series have another step than freq.

    offsets: the pandas offsets that freq may mean, none for an int."""
    import numpy as np
    import pandas as pd
    from pandas.tseries.offsets import Week

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
    times = clock.moments(start + np.arange(_STEPS_COMPARED))
    first = pd.Timestamp(times[0])
    ranges = (pd.date_range(first, periods=len(times), freq=offset) for offset in offsets)
    if not any((of_freq.to_numpy(dtype=times.dtype) == times).all() for of_freq in ranges):
        weeks = ""
        if isinstance(offsets[0], Week) and clock.rhythm == "7 days":
            name = f"W-{first:%a}".upper()
            weeks = f"; {freq!r} are weeks from {first + offsets[0]:%A} on, write {name!r} or '7D'"
        step = clock.words if clock.is_of_calendar else pd.Timedelta(clock.step)
        raise DataError(
            f"freq = {freq!r}: the series have a step of {step}, from {first:%A, %Y-%m-%d %H:%M} "
            f"on{weeks}"
        )
