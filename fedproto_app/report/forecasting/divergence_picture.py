"""FUELS's matrix of prototype divergences, with clients that are alike side by side."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.sources import load_series
from fedproto_app.maths.even_choice import evenly
from fedproto_app.report.forecasting.raw_divergence import rank_correlation, raw_divergence
from fedproto_app.report.runs import read_run
from fedproto_app.settings import settings_from

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLIENTS = 1000  # rows of the picture; more would be finer than its pixels
_NAMED_CLIENTS = 40  # more names than that cannot be read

_log = logging.getLogger(__name__)


def draw_divergence(run_dir: Path) -> Figure:
    """The matrix of ``divergence.npz``, alike clients side by side.

    Of a simulation whose data are there also that of the data, in the same order, and how well the
    two agree (P, Fig. 8).
    """
    from matplotlib.figure import Figure

    names, groups, divergence, total = read_divergence(run_dir)
    matrices, title = {"prototypes": divergence}, run_dir.name
    if (raw := _divergence_of_data(run_dir, names.tolist())) is not None:
        matrices["mean days of the train part"] = raw
        if (agreement := rank_correlation(divergence, raw)) is not None:
            title += f": Spearman's correlation of the two {agreement:.2f}"

    figure = Figure(figsize=(7 * len(matrices), 6), layout="constrained")
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    clients = f"{total}" if len(names) == total else f"{len(names)} of {total}"
    for axes, (what, matrix) in zip(panels, matrices.items(), strict=True):
        axes.grid(False)
        image = axes.imshow(matrix, cmap="viridis", interpolation="nearest")
        label = f"Jensen-Shannon divergence (nats)\nof {what}"
        figure.colorbar(image, ax=axes, label=label, shrink=0.85)
        _name_clients(axes, names, groups)
        axes.set(xlabel=f"{clients} clients in the same order")
    if len(panels) == 1:
        panels[0].set_title(title)
    else:
        figure.suptitle(title, fontsize=12)
    return figure


def read_divergence(
    run_dir: Path,
) -> tuple[NDArray[np.str_], NDArray[np.str_], NDArray[np.floating[Any]], int]:
    """Of ``divergence.npz`` the clients' names [N], groups [N] and divergence [N, N], alike clients
    side by side; and of how many clients these are some."""
    with np.load(run_dir / "divergence.npz", allow_pickle=False) as file:
        names, groups, divergence = (file[key] for key in ("names", "groups", "divergence"))
        clients = len(names)
        if "divergence_of" in file:  # of very many clients the file has the matrix of some
            names, groups = names[file["divergence_of"]], groups[file["divergence_of"]]
    shown = evenly(groups, _MOST_CLIENTS)  # clustering costs the square of what is shown
    shown = shown[alike_together(divergence[np.ix_(shown, shown)], groups[shown])]
    return names[shown], groups[shown], divergence[np.ix_(shown, shown)], clients


def _divergence_of_data(run_dir: Path, names: Sequence[str]) -> NDArray[np.floating[Any]] | None:
    """`raw_divergence` of these clients of a simulation, read again where the run read them.

    None for a deployed run, whose data the server never has, and where the data are gone.
    """
    if not (run_dir / "state").is_dir():
        return None
    try:
        settings = settings_from(read_run(run_dir).settings)
        series = {one.name: one for one in load_series(settings.data)}
        if missing := sorted(set(names) - set(series)):
            raise FedProtoError(f"client {missing[0]!r} is not in the data any more")
        return raw_divergence([series[name] for name in names], settings.data)
    except (FedProtoError, OSError) as error:
        _log.info("%s: no divergence of the clients' data: %s", run_dir, error)
        return None


def _name_clients(axes: Axes, names: NDArray[np.str_], groups: NDArray[np.str_]) -> None:
    """By true group, with lines between the groups, or by client where not too many."""
    axes.set_xticks([])
    starts = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1), len(groups)]
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
