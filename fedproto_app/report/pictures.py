"""Pictures of runs, drawn from their artefacts alone.

matplotlib is imported where it is needed, and only its object interface is used: the server app
draws at the end of a run, in a thread, where pyplot's global state has no place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.errors import FedProtoError
from fedproto_app.report.runs import Group, labels, read_clients, read_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): told apart with every common colour blindness; dashes tell them apart in
# grey print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "savefig.dpi": 150,
}
_MSE = "MSE (standardised)"
_PARAMETERS = "parameters sent up and down, all clients"
_WIDE_SPAN = 20  # from this ratio of largest to smallest error on, a logarithmic axis reads better
_MOST_CLIENTS = 1000  # rows of the divergence picture; more would be finer than its pixels
_NAMED_CLIENTS = 40  # more names than that cannot be read


def draw(run_dir: Path) -> list[Path]:
    """Draw what the run's artefacts allow into ``<run_dir>/pictures``; returns the PNG files.

    clients-mse.png: the distribution of the clients' errors. rounds.png: training, validation and
    test error against rounds and against communicated parameters. divergence.png: the matrix of
    prototype divergences (FUELS). filter.png and forecast.png: `state_pictures`. Raises
    `FedProtoError` if there is nothing to draw.
    """
    from matplotlib import rc_context

    from fedproto_app.report.state_pictures import state_pictures

    drawn = []
    with rc_context(_STYLE):
        if (run_dir / "clients.csv").exists():
            drawn.append(_save(_draw_clients(run_dir), run_dir, "clients-mse.png"))
        if (run_dir / "rounds.jsonl").exists():
            drawn.append(_save(_draw_rounds(run_dir), run_dir, "rounds.png"))
        if (run_dir / "divergence.npz").exists():
            drawn.append(_save(_draw_divergence(run_dir), run_dir, "divergence.png"))
        figures = state_pictures(run_dir)
        drawn += [_save(figure, run_dir, name) for name, figure in figures.items()]
    if not drawn:
        raise FedProtoError(f"{run_dir}: no clients.csv, rounds.jsonl or divergence.npz to draw")
    return drawn


def draw_comparison(groups: Sequence[Group], file: Path) -> None:
    """Draw groups of runs into one PNG: a row of two panels for each dataset.

    Left, the distribution over clients (of all seeds) of the test MSE; right, the test MSE of the
    first seed's run against the parameters communicated so far.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(group.dataset for group in groups))
    named = list(zip(groups, labels(groups), strict=True))
    looks = {label: _look(i) for i, label in enumerate(sorted({label for _, label in named}))}
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.2 * len(datasets)), layout="constrained")
        panels = figure.subplots(len(datasets), 2, squeeze=False)
        for dataset, (left, right) in zip(datasets, panels, strict=True):
            members = {label: group for group, label in named if group.dataset == dataset}
            errors = {
                label: np.concatenate([_client_errors(run.folder, "mse") for run in group.runs])
                for label, group in members.items()
            }
            _plot_distribution(left, errors, looks)
            left.set_title(f"{dataset}: error over clients")
            _plot_cost(right, {k: group.runs[0].folder for k, group in members.items()}, looks)
            right.set_title(f"{dataset}: error and cost")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)


def _save(figure: Figure, run_dir: Path, name: str) -> Path:
    folder = run_dir / "pictures"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / name)
    return folder / name


def _look(number: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number."""
    dashes = _DASHES[(number + number // len(_COLOURS)) % len(_DASHES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dashes}


def _draw_clients(run_dir: Path) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    kept, last = _client_errors(run_dir, "mse"), _client_errors(run_dir, "last_mse")
    errors = {"kept model": kept, "last model": last}
    _plot_distribution(axes, errors, {label: _look(i) for i, label in enumerate(errors)})
    axes.set_title(f"{run_dir.name}\n{len(kept)} clients")
    return figure


def _plot_distribution(
    axes: Axes, errors: Mapping[str, NDArray[np.float64]], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Cumulative distributions of errors [N]; a label and a look each."""
    for label, values in errors.items():
        if values.size:
            axes.ecdf(values, label=label, **looks[label])
    together = np.concatenate(list(errors.values()))
    positive = together[together > 0]
    if positive.size and positive.max() / positive.min() > _WIDE_SPAN:
        axes.set_xscale("log")
    axes.set(xlabel=f"test {_MSE} of a client", ylabel="share of clients", ylim=(0, 1.02))
    if axes.lines:
        axes.legend()


def _plot_cost(
    axes: Axes, folders: Mapping[str, Path], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Test error against the parameters communicated so far; a label and a look each."""
    least = float("inf")  # parameters of a method's first round
    for label, folder in folders.items():
        rounds = read_rounds(folder)
        sent, errors = _sent_so_far(rounds), [record["test_mse"] for record in rounds]
        known = [(x, y) for x, y in zip(sent, errors, strict=True) if y is not None]
        if known:
            axes.plot(*zip(*known, strict=True), label=label, **looks[label])
            least = min([least, *(x for x, _ in known if x > 0)])
    if least < float("inf"):
        # Methods differ by orders of magnitude, and some send nothing at all.
        axes.set_xscale("symlog", linthresh=least)
    axes.set(xlabel=_PARAMETERS, ylabel=f"test {_MSE}")
    if axes.lines:
        axes.legend()


def _client_errors(run_dir: Path, column: str) -> NDArray[np.float64]:
    """[N] one figure of ``clients.csv``, of the clients that have it."""
    values = [float(row[column] or "nan") for row in read_clients(run_dir)]
    return np.array([value for value in values if isfinite(value)])


def _sent_so_far(rounds: Sequence[Mapping[str, Any]]) -> list[int]:
    """Parameters sent up and down by the end of each round."""
    return list(
        accumulate(record["parameters_up"] + record["parameters_down"] for record in rounds)
    )


def _draw_rounds(run_dir: Path) -> Figure:
    from matplotlib.figure import Figure

    rounds = read_rounds(run_dir)
    numbers, sent = [record["round"] for record in rounds], _sent_so_far(rounds)
    lines = {
        "training": [record["loss"].get("prediction") for record in rounds],
        "validation": [record["validation_mse"] for record in rounds],
        "test": [record["test_mse"] for record in rounds],
    }
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, places in ((left, numbers), (right, sent)):
        for number, (label, values) in enumerate(lines.items()):
            known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
            if known:
                marker = "o" if len(known) == 1 else None  # a line of one point is invisible
                axes.plot(*zip(*known, strict=True), label=label, marker=marker, **_look(number))
    left.set(xlabel="round", ylabel=_MSE)
    right.set(xlabel=_PARAMETERS)
    if left.lines:
        left.legend()
    figure.suptitle(run_dir.name, fontsize=12)
    return figure


def _draw_divergence(run_dir: Path) -> Figure:
    from matplotlib.figure import Figure

    with np.load(run_dir / "divergence.npz", allow_pickle=False) as file:
        names, groups, divergence = (file[key] for key in ("names", "groups", "divergence"))
    total = len(names)
    shown = evenly(groups, _MOST_CLIENTS)  # clustering costs the square of what is shown
    shown = shown[alike_together(divergence[np.ix_(shown, shown)], groups[shown])]
    groups, names, divergence = groups[shown], names[shown], divergence[np.ix_(shown, shown)]

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    image = axes.imshow(divergence, cmap="viridis", interpolation="nearest")
    figure.colorbar(image, label="Jensen-Shannon divergence of prototypes (nats)", shrink=0.85)
    starts = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1), len(shown)]
    if groups.any():
        for edge in starts[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=1)
            axes.axvline(edge - 0.5, color="white", linewidth=1)
        middles = [(first + end - 1) / 2 for first, end in pairwise(starts)]
        axes.set_yticks(middles, groups[starts[:-1]])
    elif len(names) <= _NAMED_CLIENTS:
        axes.set_yticks(range(len(names)), names, fontsize=7)
    else:
        axes.set_yticks([])
    axes.set_xticks([])
    clients = f"{total}" if len(shown) == total else f"{len(shown)} of {total}"
    axes.set(xlabel=f"{clients} clients in the same order", title=run_dir.name)
    return figure


def evenly(groups: NDArray[np.str_], most: int) -> NDArray[np.intp]:
    """[min(N, most)] clients, ascending, every true group by its share of all N.

    groups: [N] text, "" where unknown.
    """
    by_group = np.argsort(groups, kind="stable")
    count = min(len(groups), most)
    return np.sort(by_group[np.arange(count) * len(groups) // max(count, 1)])


def alike_together(
    divergence: NDArray[np.floating[Any]], groups: NDArray[np.str_]
) -> NDArray[np.intp]:
    """[N] an order of clients with the alike side by side: by true group, then by clustering.

    divergence: [N, N] symmetric, NaN where unknown. groups: [N] text, "" where unknown.
    Average-linkage clustering; its leaves are the order.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    clients = len(groups)
    if clients < 2:
        return np.arange(clients)
    known = np.nan_to_num(divergence.astype(np.float64), nan=np.log(2))  # unknown: most different
    distances = squareform((known + known.T) / 2, checks=False)
    leaves = leaves_list(linkage(distances, method="average"))
    by_group = np.argsort(groups[leaves], kind="stable")
    return np.asarray(leaves[by_group], dtype=np.intp)
