"""What a page shows of forecasting runs: errors by step ahead, forecasts, who is like whom."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.drawing import is_wide
from fedproto_app.report.forecasting.divergence_picture import read_divergence
from fedproto_app.report.forecasting.examples import (
    Forecast,
    find_examples,
    kept_forecasts,
    last_periods,
    ranked_clients,
)
from fedproto_app.report.page.charts import Axis, Line, Lines, Matrix, Section
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.intervals import LEVELS

_MOST_LINES = 8  # of errors by step
_MOST_METHODS = 5  # in one picture of forecasts; more lines would hide each other
_MOST_MATRICES = 4

_log = logging.getLogger(__name__)


def forecasting_sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Each where its artefacts are there."""
    return [*_steps(runs, first), *_forecasts(runs, first), *_divergences(runs, first)]


def _steps(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Error by step ahead, of the runs that forecast several."""
    lines = []
    shown = {*list(runs)[:_MOST_LINES], first}
    for number, (label, folder) in enumerate(runs.items()):
        if label in shown and (folder / "steps.csv").exists():
            with (folder / "steps.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            steps, errors = ([float(row[name]) for row in rows] for name in ("step", "mse_median"))
            lines.append(Line(label, np.array(steps), np.array(errors), look=number))
    if not lines:
        return []
    told = next((line for line in lines if line.label == first), lines[0])
    text = (
        "Line chart of the median client's test error against how many steps ahead is forecast. "
        f"{told.label}: {told.y[0]:.3g} one step ahead, {told.y[-1]:.3g} at step {len(told.y)}."
    )
    chart = Lines(
        "Error by how far ahead", text, Axis("steps ahead", whole=True),
        Axis("median client's test MSE", log=is_wide(np.concatenate([one.y for one in lines]))),
        lines, wide=True,
    )  # fmt: skip
    about = "How the median client's error grows with the distance that is forecast."
    if len(runs) > _MOST_LINES:
        also = f", and {first}" if first not in list(runs)[:_MOST_LINES] else ""
        about += f" The first {_MOST_LINES} rows of the table of methods{also}."
    return [Section("Error by step ahead", about, [chart])]


def _forecasts(runs: Mapping[str, Path], first: str) -> list[Section]:
    """The last periods of the test part of the first run's best, median and worst client."""
    try:
        found, settings = forecasts_beside({first: runs[first], **runs})
    except (FedProtoError, OSError) as error:
        _log.info("%s: no forecasts to show: %s", runs[first], error)
        return []
    charts = [
        _forecast(title, by_label, settings.data.period, list(runs))
        for title, by_label in found.items()
    ]
    ahead = settings.data.horizon
    made = f"made for {ahead} steps at once" if ahead > 1 else "each made one step before"
    about = (
        f"The end of the test part of the clients that {first} forecasts best, at the "
        f"median and worst; forecasts are {made}. Of {LEVELS[0]}% bands about "
        f"{LEVELS[0]} of 100 true values should lie inside."
    )
    return [Section("Forecasts beside what came true", about, charts)]


def forecasts_beside(
    runs: Mapping[str, Path],
) -> tuple[dict[str, dict[str, Forecast]], Settings]:
    """What several runs on the same data forecast for the first one's best, median and worst
    client, by the clients' titles and the runs' labels; and the first one's settings.

    A run without models or with other data now is left out. Raises `FedProtoError` if the first one
    is.
    """
    from safetensors import SafetensorError

    first = next(iter(runs.values()))
    titles = ranked_clients(first)
    found: dict[str, dict[str, Forecast]] = {title: {} for title in titles.values()}
    asked: Settings | None = None
    for label, folder in list(runs.items())[:_MOST_METHODS]:
        try:
            settings = settings_from(read_run(folder).settings)
            if not (folder / "state").is_dir():
                raise FedProtoError(f"{folder}: no node's state in it; sites keep their own")
            examples = find_examples(folder, settings, titles)
            forecasts = kept_forecasts(examples, settings)
        except (FedProtoError, SafetensorError, OSError) as error:
            if asked is None:
                raise FedProtoError(str(error)) from error
            _log.info("%s: no forecasts beside the others: %s", folder, error)
            continue
        asked = asked or settings
        for example, forecast in zip(examples, forecasts, strict=True):
            found[example.title][label] = forecast
    assert asked is not None, "else the first one raised"
    return found, asked


def _forecast(
    title: str, by_label: Mapping[str, Forecast], period: int, labels: list[str]
) -> Lines:
    """A band is drawn of the first run alone: several would hide each other."""
    first = next(iter(by_label.values()))
    lines = []
    for label, shown in by_label.items():
        steps = last_periods(shown, period)
        places, look = _places(shown, steps), labels.index(label)
        if shown is first:
            lines.append(Line("what came true", places, shown.truth[steps], look=None))
        band = shown.half_widths[0, steps] if shown is first else None
        lines.append(Line(label, places, shown.forecast[steps], band, look))
    inside = np.abs(first.truth - first.forecast) <= first.half_widths[0]
    share = inside[np.isfinite(first.truth)].mean()
    label = next(iter(by_label))
    text = (
        f"Line chart of {title}: true values and the forecasts of {', '.join(by_label)}. "
        f"{share:.0%} of the test part's values lie in {label}'s {LEVELS[0]}% band."
    )
    clock = first.clock
    when = "step of the data" if clock is None else "time (UTC)" if clock.utc else "time"
    heading = f"{title[0].upper()}{title[1:]} — {share:.0%} inside the band"
    axis = Axis(when, times=clock is not None, whole=clock is None)
    return Lines(heading, text, axis, Axis("value, in the data's units"), lines, wide=True)


def _places(shown: Forecast, steps: NDArray[np.intp]) -> NDArray[np.float64]:
    """Seconds since 1970, or positions where the data have no times."""
    positions = shown.positions[steps]
    if shown.clock is None:
        return positions.astype(np.float64)
    return shown.clock.moments(positions).astype("datetime64[us]").astype(np.float64) / 1e6


def _divergences(runs: Mapping[str, Path], first: str) -> list[Section]:
    """How different the clients of the runs with ``divergence.npz`` look to the method."""
    ordered = {first: runs[first], **runs}
    with_file = {label: at for label, at in ordered.items() if (at / "divergence.npz").exists()}
    unlike: dict[bytes, list[str]] = {}  # several methods may have asked for the same summaries
    for label, at in with_file.items():
        with (at / "divergence.npz").open("rb") as file:
            unlike.setdefault(file_digest(file, "sha256").digest(), []).append(label)
    labels = list(unlike.values())[:_MOST_MATRICES]
    charts = [_divergence(own, with_file[own]) for own, *_ in labels]
    if not charts:
        return []
    about = (
        "How different the summaries are that the clients sent, by the Jensen-Shannon divergence: "
        "0 for equal ones. Dark blocks along the diagonal are clients that the method takes for "
        "alike."
    )
    for own, *others in labels:
        if others:
            about += f" {', '.join(others)}: the same as {own}."
    return [Section("Who is like whom", about, charts)]


def _divergence(label: str, folder: Path) -> Matrix:
    names, groups, cells, total = read_divergence(folder)
    apart = cells[~np.eye(len(cells), dtype=bool)]
    known = apart[np.isfinite(apart)]
    middle = f"; the median of two clients is {np.median(known):.2g} nats" if known.size else ""
    some = f"{len(names)} of {total}" if len(names) < total else f"{total}"
    by_group = groups.any()
    text = f"Heat map of the divergence of every two of {some} clients, for {label}{middle}."
    return Matrix(
        f"{label}: {some} clients", text, cells.astype(np.float64), "divergence (nats)",
        rows=names.tolist(), groups=groups.tolist() if by_group else (),
        column_title="the same clients in the same order", square=True,
    )  # fmt: skip
