"""Make the charts of forecasting runs: errors by step ahead, forecasts, similar clients, filters.

The charts of columns known in advance are in `responses.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import file_digest
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Axis, Chart, Line, Lines, Matrix, Section, is_wide
from fedproto_app.core.errors import FedProtoError
from fedproto_app.maths.even_choice import evenly
from fedproto_app.report.forecasting.examples import (
    Forecast,
    find_examples,
    kept_forecasts,
    ranked_clients,
)
from fedproto_app.report.forecasting.responses import response_charts, response_sections
from fedproto_app.report.run_files import read_table
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.metrics import LEVELS

_PERIODS_SHOWN = 4  # the last periods of the test part
_MOST_LINES = 8  # in the chart of errors by step
_MOST_METHODS = 3  # in one chart of forecasts. More lines would hide the bands
_MOST_CHOICES, _MOST_OF_ONE_RUN = 40, 12  # clients whose forecasts a page offers
_MOST_MATRICES = 4
_MOST_CLIENTS = 1000  # rows of a matrix. The cost of clustering grows with their square
_MOVED = 0.01  # relative change at which a filter's entry has moved from its start value
_PHASE_LABELS = 8  # approximate number on an axis

_log = logging.getLogger(__name__)


def sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Return the sections that the runs' artefacts allow. See `TaskReport.sections`."""
    max_clients = _MOST_CHOICES if len(runs) > 1 else _MOST_OF_ONE_RUN
    return [
        *_steps(runs, first),
        *_forecasts(runs, first, max_clients),
        *response_sections(runs[first]),
        *_divergences(runs, first),
    ]


def pictures(run_dir: Path) -> dict[str, Sequence[Chart]]:
    """Return the charts of ``divergence.png``, ``filter.png``, ``forecast.png`` and
    ``response.png``.

    All but the first need the nodes' state of a simulation. The last two also need the data. A
    picture whose input is missing is left out.
    """
    runs = {run_dir.name: run_dir}
    charts: dict[str, Sequence[Chart]] = {}
    if (run_dir / "divergence.npz").exists():
        charts["divergence.png"] = [_divergence("prototypes", *read_divergence(run_dir))]
    charts["filter.png"] = _filters(run_dir)
    charts["forecast.png"] = [
        chart for section in _forecasts(runs, run_dir.name) for chart in section.charts
    ]
    charts["response.png"] = response_charts(run_dir)
    return {name: drawn for name, drawn in charts.items() if drawn}


def _steps(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Return the section on the error by step ahead, for runs that forecast several steps."""
    lines = []
    shown = {*list(runs)[:_MOST_LINES], first}
    for place, (label, folder) in enumerate(runs.items()):
        if label in shown and (folder / "steps.csv").exists():
            table = read_table(folder / "steps.csv")
            steps, errors = table["step"], table["mse_median"]
            if (is_finite := np.isfinite(errors)).any():
                lines.append(Line(label, steps[is_finite], errors[is_finite], look=place))
    if not lines:
        return []
    line = next((line for line in lines if line.label == first), lines[0])
    text = (
        "Line chart of the median client's test error by the number of steps ahead. "
        f"{line.label}: {line.y[0]:.3g} at step {line.x[0]:g}, {line.y[-1]:.3g} at step "
        f"{line.x[-1]:g}."
    )
    log = is_wide(np.concatenate([line.y for line in lines]))
    x, y = Axis("steps ahead", integers=True), Axis("median client's test MSE", log=log)
    chart = Lines("Error by how far ahead", text, x, y, lines, wide=True)
    about = "The median client's error by the number of steps ahead."
    if len(runs) > _MOST_LINES:
        also = f", and {first}" if first not in list(runs)[:_MOST_LINES] else ""
        about += f" Shown are the first {_MOST_LINES} rows of the table of methods{also}."
    return [Section("Error by step ahead", about, [chart])]


def _forecasts(runs: Mapping[str, Path], first: str, max_clients: int = 3) -> list[Section]:
    """Return the section on forecasts of the last periods of the first run's clients.

    If it has more than `max_clients` clients, they are chosen evenly from the best to the worst.
    """
    try:
        forecasts, settings = forecasts_beside({first: runs[first], **runs}, max_clients)
    except (FedProtoError, OSError) as error:
        _log.info("%s: no forecasts to show: %s", runs[first], error)
        return []
    charts = [
        _forecast(title, by_label, settings.data.period, list(runs))
        for title, by_label in forecasts.items()
    ]
    ahead = settings.data.horizon
    times = f"made for {ahead} steps at once" if ahead > 1 else "made one step ahead"
    narrow, wide = LEVELS
    about = (
        f"The end of a client's test part, with forecasts that were {times}. Of 100 true values, "
        f"about {narrow} should lie inside the dark band of {first}, and about {wide} inside the "
        "light one."
    )
    clients = len(ranked_clients(runs[first], max_clients=_MOST_CLIENTS))
    if len(charts) < clients:
        about += f" Shown are {len(charts)} of {clients} clients, from the best to the worst."
    names = [title.replace("client ", "") for title in forecasts]
    return [Section("Forecasts and true values", about, charts, names)]


def forecasts_beside(
    runs: Mapping[str, Path], max_clients: int
) -> tuple[dict[str, dict[str, Forecast]], Settings]:
    """Return several runs' forecasts for the same clients, and the first run's settings.

    The clients are the `ranked_clients` of the first run. The keys of the forecasts are the
    clients' titles and the runs' labels. A run is left out if it has no models, or if its data have
    changed. If this applies to the first run, `FedProtoError` is raised.
    """
    from safetensors import SafetensorError

    first = next(iter(runs.values()))
    titles = ranked_clients(first, max_clients)
    by_title: dict[str, dict[str, Forecast]] = {title: {} for title in titles.values()}
    first_settings: Settings | None = None
    for label, folder in list(runs.items())[:_MOST_METHODS]:
        try:
            settings = settings_from(read_run(folder).settings)
            if not (folder / "state").is_dir():
                raise FedProtoError(f"{folder}: no nodes' state here; deployed nodes keep it")
            examples = find_examples(folder, settings, titles)
            forecasts = kept_forecasts(examples, settings)
        except (FedProtoError, SafetensorError, OSError) as error:
            if first_settings is None:
                raise FedProtoError(str(error)) from error
            _log.info("%s: left out of the charts of forecasts: %s", folder, error)
            continue
        first_settings = first_settings or settings
        for example, forecast in zip(examples, forecasts, strict=True):
            by_title[example.title][label] = forecast
    assert first_settings is not None, "otherwise the first run raised an error"
    return by_title, first_settings


def _forecast(
    title: str, by_label: Mapping[str, Forecast], period: int, labels: list[str]
) -> Lines:
    """Return the chart of a client. Only the first run has bands, as several would overlap."""
    label, first = next(iter(by_label.items()))
    steps = slice(-_PERIODS_SHOWN * period, None)
    lines = [Line("true values", _places(first, steps), first.truth[steps], look=None)]
    for name, shown in by_label.items():
        # Forecasts and bands never go below the values' floor, just as when they are served.
        raw, widths = shown.forecast[steps], shown.half_widths[:, steps]
        low, middle, high = (np.maximum(y, shown.floor) for y in (raw - widths, raw, raw + widths))
        bands = {
            f"{level}% band": np.stack([middle - below, above - middle])
            for level, below, above in zip(LEVELS, low, high, strict=True)
        }
        lines.append(
            Line(
                name, _places(shown, steps), middle, labels.index(name),
                bands if shown is first else {},
            )
        )  # fmt: skip
    is_finite = np.isfinite(first.truth)
    inside = (np.abs(first.truth - first.forecast) <= first.half_widths)[:, is_finite].mean(axis=1)
    shares = "true values " + ", ".join(
        f"{share:.0%} in the {level}% band" for level, share in zip(LEVELS, inside, strict=True)
    )
    text = (
        f"Line chart of {title}: true values and the forecasts of {', '.join(by_label)}. With "
        f"{label}, {shares}."
    )
    rmse = first.scale.original_size(first.mse**0.5)
    heading = (
        f"{title[0].upper()}{title[1:]}: {shares}; test MSE {first.mse:.3g}, "
        f"RMSE {rmse:.3g} in the data's units"
    )
    clock, positions = first.clock, first.positions[steps]
    x = (
        Axis("step of the data", ticks=positions[positions % period == 0].tolist())
        if clock is None
        else Axis("time (UTC)" if clock.utc else "time", times=True)
    )
    return Lines(heading, text, x, Axis("value, in the data's units"), lines, wide=True)


def _places(shown: Forecast, steps: slice) -> NDArray[np.float64]:
    """Return the steps' times in seconds since 1970, or their positions if there are no times."""
    positions = shown.positions[steps]
    return positions.astype(np.float64) if shown.clock is None else shown.clock.seconds(positions)


def _divergences(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Return the section on the divergence between clients, for runs with ``divergence.npz``."""
    alike: dict[bytes, list[str]] = {}  # several methods may share the same summaries
    for label, folder in {first: runs[first], **runs}.items():
        if (folder / "divergence.npz").exists():
            with (folder / "divergence.npz").open("rb") as file:
                alike.setdefault(file_digest(file, "sha256").digest(), []).append(label)
    if not alike:
        return []
    about = (
        "The Jensen-Shannon divergence between the summaries that the clients sent, which is 0 for "
        "equal summaries. Dark blocks along the diagonal are groups of clients that the method "
        "considers similar."
    )
    charts = []
    for label, *alike_labels in list(alike.values())[:_MOST_MATRICES]:
        names, groups, cells, total = read_divergence(runs[label])
        charts.append(_divergence(label, names, groups, cells, total))
        if alike_labels:
            about += f" The divergence with {', '.join(alike_labels)} is the same as with {label}."
    return [Section("Similar clients", about, charts)]


def _divergence(
    label: str,
    names: NDArray[np.str_],
    groups: NDArray[np.str_],
    cells: NDArray[np.floating],
    total: int,
) -> Matrix:
    apart = cells[~np.eye(len(cells), dtype=bool)]
    apart = apart[np.isfinite(apart)]
    middle = f"; the median over all pairs is {np.median(apart):.2g} nats" if apart.size else ""
    count = f"{len(names)} of {total}" if len(names) < total else f"{total}"
    text = f"Heat map of the divergence between any two of {count} clients, for {label}{middle}."
    return Matrix(
        f"{label}: {count} clients", text, cells.astype(np.float64),
        "Jensen-Shannon divergence (nats)", rows=names.tolist(), groups=groups.tolist(),
        column_title="the same clients in the same order", square=True,
    )  # fmt: skip


def read_divergence(
    run_dir: Path,
) -> tuple[NDArray[np.str_], NDArray[np.str_], NDArray[np.floating], int]:
    """Return the contents of ``divergence.npz``, with similar clients next to each other.

    Returns the clients' names [N], groups [N], divergence [N, N], and the number of all clients,
    which may be larger than N.
    """
    with np.load(run_dir / "divergence.npz", allow_pickle=False) as file:
        names, groups, divergence = (file[key] for key in ("names", "groups", "divergence"))
        clients = len(names)
        if "divergence_of" in file:  # with very many clients, the matrix covers only a sample
            names, groups = names[file["divergence_of"]], groups[file["divergence_of"]]
    shown = evenly(groups, _MOST_CLIENTS)
    shown = shown[alike_together(divergence[np.ix_(shown, shown)], groups[shown])]
    return names[shown], groups[shown], divergence[np.ix_(shown, shown)], clients


def alike_together(divergence: NDArray[np.floating], groups: NDArray[np.str_]) -> NDArray[np.intp]:
    """Return an order [N] of the clients that puts similar ones next to each other.

    Clients are sorted by true group. Within a group they have the order of the leaves of an
    average-linkage clustering. divergence: [N, N] symmetric, NaN where unknown. groups: [N] text,
    "" where unknown.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    clients = len(groups)
    if clients < 2:
        return np.arange(clients)
    complete = np.nan_to_num(divergence.astype(np.float64), nan=np.log(2))  # the most different
    distances = squareform((complete + complete.T) / 2, checks=False)
    leaves = leaves_list(linkage(distances, method="average"))
    by_group = np.argsort(groups[leaves], kind="stable")
    return np.asarray(leaves[by_group], dtype=np.intp)


def _filters(run_dir: Path) -> list[Matrix]:
    """Return the filters (P, Fig. 9) that FUELS learned for the best, median and worst clients.

    Return [] if no filter has moved from its start values, which are all equal, or if there is no
    nodes' state of a simulation.
    """
    if not (run_dir / "state").is_dir():
        return []
    from safetensors import SafetensorError

    try:
        settings = settings_from(read_run(run_dir).settings)
        examples = find_examples(run_dir, settings)
    except (FedProtoError, SafetensorError, OSError) as error:
        _log.info("%s: no filters of its clients' models: %s", run_dir, error)
        return []
    parameters = [example.parameters for example in examples]
    filters = [arrays["filter"].numpy() for arrays in parameters if "filter" in arrays]
    start = getattr(settings.method_settings, "filter_start", 1.0)
    still = [np.allclose(weight, start, rtol=_MOVED, atol=0) for weight in filters]
    if len(filters) < len(examples) or all(still):
        return []
    low, high = min(map(np.min, filters)), max(map(np.max, filters))
    if low < 0:
        low, high = min(low, -high), max(high, -low)
    period = len(filters[0])
    step = ceil(period / _PHASE_LABELS)
    phases = [str(phase) if phase % step == 0 else "" for phase in range(period)]
    return [
        Matrix(
            f"{example.title}: {(weight > 0).mean():.0%} above 0",
            f"Heat map of the filter of {example.title}.", weight.astype(np.float64),
            "entry of the filter W", rows=phases, columns=phases,
            row_title="phase of the original view", column_title="phase of the shifted view",
            square=True, diverging=bool(low < 0), span=(float(low), float(high)),
        )
        for example, weight in zip(examples, filters, strict=True)
    ]  # fmt: skip
