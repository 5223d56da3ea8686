"""The Rand index over the rounds, of all ways to find clusters, in one picture.

    python -m benchmarks.rand_curves [--output runs/results-sequences]

Reads the runs of `benchmarks.results sequences` for its tables of clusters, and draws
docs/results/rand.svg, a panel a data set. A curve is the mean over a row's seeds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import ROOT, picture
from benchmarks.parts import parser_of
from benchmarks.results.declared import page
from benchmarks.results.runs import finished
from fedproto_app.report.drawing import look
from fedproto_app.report.runs import Group

PANELS = {"airwriting-clusters": "air-writing", "pendigits-clusters": "PenDigits"}
# A1 to A3 have EC's clusters and differ only in the heads.
CURVES = ("sc", "ec", "a1-toolbox", "a1-all-rounds", "a1-centred", "a1-norms", "ifca")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / page("sequences").folder)
    output = parser.parse_args().output.resolve()
    tables = page("sequences").tables
    panels = {
        title: {name: groups[name] for name in CURVES if name in groups}
        for experiment, title in PANELS.items()
        if (groups := finished(tables[experiment], output))
    }
    if not panels:
        raise SystemExit(f"no finished run of {' or '.join(PANELS)} in {output}")
    draw(panels, ROOT / "docs" / "results" / "rand.svg")


def rand_curve(group: Group) -> NDArray[np.float64]:
    """Return the mean over runs, [R]. R is the number of rounds that all runs have."""
    curves: list[NDArray[np.float64]] = []
    for run in group.runs:
        with np.load(run.folder / "clusters.npz", allow_pickle=False) as clusters:
            curves.append(clusters["rand_index"])
    length = min(map(len, curves))
    mean: NDArray[np.float64] = np.stack([curve[:length] for curve in curves]).mean(axis=0)
    return mean


def draw(panels: dict[str, dict[str, Group]], file: Path) -> None:
    """Draw a panel for each data set. panels: rows by name, by the panel's title."""
    rows = page("sequences").tables["pendigits-clusters"].rows
    with picture(file, 5.2 * len(panels), 3.6) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, (title, groups) in zip(axes, panels.items(), strict=True):
            for name, group in groups.items():
                curve = rand_curve(group)
                rounds = np.arange(1, len(curve) + 1)
                panel.plot(rounds, curve, label=rows[name].title, **look(CURVES.index(name)))
            panel.set(title=title, xlabel="round of phase 2", ylim=(None, 1.02))
        axes[0].set_ylabel("Rand index (1: the true groups)")
        axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))


if __name__ == "__main__":
    main()
