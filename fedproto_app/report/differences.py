"""The picture of `report/pairs.py`: each client's difference between two methods' errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.drawing import STYLE, is_wide, look
from fedproto_app.report.pairs import Pair


def draw_differences(pairs: Sequence[Pair], file: Path) -> None:
    """Draw the differences into one PNG, a panel for each rival and dataset.

    A method is a line through its clients, from the one that gains most to the one that loses most;
    where it crosses 0, gains end. Raises `FedProtoError` if there are no pairs.
    """
    if not pairs:
        raise FedProtoError("--differences: no two runs have clients with errors to compare")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        panels[pair.dataset, pair.against].append(pair)
    with rc_context({**STYLE, "text.parse_math": False}):  # names are no formulas
        figure = Figure(figsize=(8, 4.6 * len(panels)), layout="constrained")
        drawn = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for ((dataset, against), members), axes in zip(panels.items(), drawn, strict=True):
            for number, pair in enumerate(members):
                values = np.sort(pair.by_client)
                label = f"{pair.method}: {pair.better} of {pair.clients} gain"
                places = np.arange(1, len(values) + 1)
                axes.plot(places, values, marker=".", label=label, **look(number))
            every = np.abs(np.concatenate([pair.by_client for pair in members]))
            if is_wide(every) and every.any():
                # Few clients' differences are far larger than the others'.
                linear = float(np.quantile(every[every > 0], 0.5))
                axes.set_yscale("symlog", linthresh=linear)
            axes.axhline(0, color="black", linewidth=1)
            axes.set(
                title=f"{dataset}: against {against}",
                xlabel="clients, sorted for each method",
                ylabel="difference of test errors; below 0: lower",
            )
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend()
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
