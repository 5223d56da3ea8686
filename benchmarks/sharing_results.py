"""docs/results/sharing.md: what sharing adds to the best that a client can do alone.

    python -m benchmarks.sharing_results                    # all cells, twenty minutes of one core
    python -m benchmarks.sharing_results milano demo        # the cells of two data sets
    python -m benchmarks.sharing_results --page-only        # from existing figures

A cell is a data set, so many steps ahead, and so many periods of training at every client. Each has
Kindred, Kindred alone, and Kindred with masked sums: of all clients, and where the data have groups
also of each group. The halves of the methods are the app's own, one client after the other in one
process. Sums are rounded as masks need it, and the masks, which cancel exactly, are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.history_results import Client, joined, priors_of, settings_of
from benchmarks.machine import processors
from benchmarks.pages import (
    ROOT,
    UNKNOWN,
    Lines,
    Shown,
    data_root,
    picture,
    publish,
    with_origin,
    write_section,
)
from benchmarks.parts import geometric_mean, parser_of, require_names
from benchmarks.results.declared import page
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import lookback, make_windows, parts_of
from fedproto_app.report.comparison import percent_gain
from fedproto_app.report.drawing import look
from fedproto_app.report.gain import Blocks, Finding, Gain, gain_of
from fedproto_app.settings import AggregationSettings, Settings, settings_from
from fedproto_app.strategies.common.learner import Cohort
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT, OTHERS, UNIT, KindredLearner
from fedproto_app.tasks.forecasting.metrics import BLOCK_METRICS
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.trust.fixed_point import Layout, Sums, packed, unpacked

PAGE = ROOT / "docs" / "results" / "sharing.md"
MAKER = "benchmarks.sharing_results"
OUTPUT = ROOT / "runs" / "results" / "sharing"
ALONE, KINDRED, ALIKE, GROUPS = "alone", "Kindred", "all alike", "groups"
KEYS, RATIO = ("data", "steps", "periods"), "MSE ratio"
SHOWN = {
    "cells": Shown(
        rows=[
            "demo, 1, 7",
            "demo, 24, 7",
            "milano, 1, 1",
            "milano, 24, 7",
            "m4, 1, 1",
            "m4, 24, 1",
            "PM2.5, 24, 7",
            "METR-LA, 1, 1",
        ],
        columns=("clients", "MAE gain", "95% CI", "finding", RATIO),
        keys=3,
    ),
    "masked": Shown(
        rows=[
            "demo, 1, 1",
            "demo, 1, 7",
            "demo, 24, 7",
            "milano, 1, 1",
            "milano, 24, 7",
            "m4, 1, 1",
        ],
        columns=("kin", "common, masked", "groups, masked"),
        keys=3,
    ),
}
Errors = dict[str, list[float]]  # test MSE by method, of the clients in the source's order


@dataclass(frozen=True)
class DataSet:
    """A data set. steps: ahead. periods: of training at every client, 0: all. group: of a client,
    which models do not see."""

    settings: dict[str, object]
    steps: tuple[int, ...] = (1, 24)
    periods: tuple[int, ...] = (1, 2, 7, 0)
    base: str = ""  # the configuration that it starts from
    shifted: bool = False
    group: Callable[[ClientSeries], str] = lambda series: ""


SETS = {
    "demo": DataSet({"data.calendar": "week"}, group=lambda series: series.group),
    "milano": DataSet({}, base="milano"),
    "milano, weekdays known": DataSet({"data.calendar": "week"}, base="milano"),
    "milano, level shift": DataSet({}, base="milano", shifted=True),
    "electricity": DataSet({}, base="electricity"),
    # The two collections that it was made of differ in length.
    "m4": DataSet(
        {"data.max-clients": 0}, base="m4", group=lambda series: str(len(series.values) > 800)
    ),
    "PM2.5": DataSet(
        {
            "data.source": "long-csv",
            "data.path": "beijing_air_weather_hourly.csv.gz",
            "data.columns": "pm25",
            "data.period": 24,
            "data.calendar": "phase",  # as `try` chooses, because weeks do not repeat
            "data.max-steps": 24 * 200,
        }
    ),
    "METR-LA": DataSet(
        {
            "data.source": "wide-csv",
            "data.path": page("forecasting").tables["metr-la"].data,
            "data.period": 288,
            "data.calendar": "phase",
        },
        steps=(1, 12),
        periods=(1, 2, 0),
    ),
}


def settings_in(chosen: DataSet, steps: int, periods: int) -> Settings:
    """Return the settings of a cell, seed 0."""
    changes = {**chosen.settings, "data.horizon": steps, "data.history": periods, "seed": 0}
    if "data.path" in changes:
        changes["data.path"] = str(data_root() / str(changes["data.path"]))
    changes["method"] = "kindred"
    return settings_of(chosen.base, **changes) if chosen.base else settings_from(changes)


def series_of(chosen: DataSet, settings: Settings) -> list[ClientSeries]:
    """Return the clients. A level shift raises each by a standard deviation, from an hour in the
    last nine days of its training part on, a different hour for each client."""
    result = []
    for number, client_series in enumerate(load_series(settings.data)):
        back = lookback(settings.data)
        train, _, _ = parts_of(client_series, settings.data)
        values = client_series.values.copy()
        if chosen.shifted:
            start = back + train - 24 * (1 + number % 9) - 7 * number % 24
            values[start:] += np.nanstd(values[:start])
        result.append(replace(client_series, values=values))
    return result


class Judged(NamedTuple):
    """A client's test MSE, and its test MAE by block (`BLOCK_METRICS`)."""

    mse: float
    blocks: list[float]


def judged_by(learner: KindredLearner, client: Client, cohort: Cohort) -> Judged:
    metrics = learner.evaluate(cohort, Guidance())
    return Judged(client.judged(metrics), [metrics[metric][0] for metric in BLOCK_METRICS])


def masked_total(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the total of these clients' arrays, [N, …] → […], each a node of a masked sum."""
    bits, nodes = AggregationSettings().secure_bits, len(rows)
    sums = [Sums({"": row.astype(np.float64) / UNIT}, {}) for row in rows]
    layout = Layout.from_sums(sums[0])
    vector = np.sum([packed(of_node, bits, nodes) for of_node in sums], axis=0)
    return unpacked(vector, layout, bits).values[""].astype(np.float32)


def guidances_of(arrays: Arrays, groups: Sequence[str]) -> list[Arrays]:
    """Return what the server sends to each client where masks hide all but totals: those over all,
    and over the group of each client that has one."""
    names = sorted({"", *groups})
    rows = {name: [r for r, group in enumerate(groups) if name in ("", group)] for name in names}
    totals = {
        n: np.stack([masked_total(arrays[n][rows[g]]) for g in names]) for n in (GRAM, MOMENT)
    }
    peers = [[float(n in ("", group)) * (len(rows[n]) - 1) for n in names] for group in groups]
    return [{**totals, OTHERS: np.array([of_client], np.float32)} for of_client in peers]


def errors_of(
    series: Sequence[ClientSeries], settings: Settings, periods: int, groups: Sequence[str]
) -> tuple[Errors, dict[str, list[list[float]]]]:
    """Return the errors of a cell, and the blocks of Kindred together and alone.

    groups: of the clients, "" for those without one.
    """
    section = settings.method_table(KindredSettings)
    learner = KindredLearner(settings.training, section, ForecastingTask(settings))
    clients = [Client(client_series, settings, periods) for client_series in series]
    fitted = [client.fitted_alone(learner) for client in clients]
    cohorts = [cohort for cohort, _ in fitted]
    judged = {ALONE: list(map(partial(judged_by, learner), clients, cohorts))}
    contributions = joined([arrays for _, arrays in fitted])
    priors = priors_of(contributions, section.temperatures)
    guidances = {
        KINDRED: [{n: p[row : row + 1] for n, p in priors.items()} for row in range(len(clients))],
        ALIKE: guidances_of(contributions, [""] * len(clients)),
    }
    if any(groups):
        guidances[GROUPS] = guidances_of(contributions, groups)
    for method, of_clients in guidances.items():
        for client, cohort, guidance in zip(clients, cohorts, of_clients, strict=True):
            client.receive(learner, cohort, guidance)
        judged[method] = list(map(partial(judged_by, learner), clients, cohorts))
    errors = {method: [client.mse for client in rows] for method, rows in judged.items()}
    blocks = {method: [client.blocks for client in judged[method]] for method in (ALONE, KINDRED)}
    return errors, blocks


# --- the page ---------------------------------------------------------------------------------


def ratio(errors: Errors, method: str, rival: str) -> NDArray[np.float64]:
    """Return the ratio of two methods' errors at each client."""
    result: NDArray[np.float64] = np.array(errors[method]) / np.array(errors[rival])
    return result


def lines_of(cells: Sequence[dict[str, Any]]) -> Lines:
    titles = [*KEYS, "clients", "test part", "MAE gain", "95% CI"]
    lines = [[*titles, "better off", "finding", RATIO, "all alike"]]
    for cell in cells:
        errors, gain = cell["errors"], gain_in(cell)
        interval = gain.interval
        row = [
            *key_of(cell),
            *(str(len(gain.ratios)), gain.test_part.replace(" test", "")),
            percent_gain(gain.ratio),
            " to ".join(map(percent_gain, reversed(interval))) if interval else UNKNOWN,
            f"{gain.better / len(gain.ratios):.0%}",
            gain.finding.value,
            f"{geometric_mean(ratio(errors, KINDRED, ALONE)):.3f}",
            f"{geometric_mean(ratio(errors, ALIKE, ALONE)):.3f}",
        ]
        lines.append(row)
    return lines


def key_of(cell: dict[str, Any]) -> list[str]:
    return [cell["data"], str(cell["steps"]), str(cell["periods"] or "all")]


def masked_lines_of(cells: Sequence[dict[str, Any]]) -> Lines:
    """Return the table of Kindred in the clear and with masked sums, relative to Kindred alone."""
    lines = [[*KEYS, "clients", "kin", "common, masked", "groups, masked"]]
    for cell in cells:
        errors = cell["errors"]
        ratios = [
            f"{geometric_mean(ratio(errors, method, ALONE)):.3f}" if method in errors else UNKNOWN
            for method in (KINDRED, ALIKE, GROUPS)
        ]
        lines.append([*key_of(cell), str(len(errors[ALONE])), *ratios])
    return lines


def gain_in(cell: dict[str, Any]) -> Gain:
    """Return what the clients of a cell gain with Kindred over Kindred alone."""
    blocks = {
        method: {
            str(client): Blocks(seconds, int(steps), int(first), parts)
            for client, (seconds, steps, first, *parts) in enumerate(rows)
        }
        for method, rows in cell["blocks"].items()
    }
    errors = {
        method: {client: sum(b.parts) for client, b in of_method.items()}
        for method, of_method in blocks.items()
    }
    pairs = [(c, blocks[KINDRED][c], rival) for c, rival in blocks[ALONE].items()]
    return gain_of(errors[KINDRED], errors[ALONE], pairs)


def summary_of(lines: Lines) -> str:
    """Return a sentence on the cells with little history, and one on those with all."""
    head, *rows = lines
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    texts = []
    for title, chosen in (
        ("With 1 to 7 periods of training", [c for c in cells if c["periods"] != "all"]),
        ("With all history", [c for c in cells if c["periods"] == "all"]),
    ):
        times = Counter(cell["finding"] for cell in chosen)
        ratios = np.array([float(cell[RATIO]) for cell in chosen])
        texts.append(
            f"{title} Kindred has {geometric_mean(ratios):.3f} of the local model's MSE on average "
            f"over {len(chosen)} cells, and {ratios.max():.3f} in the worst. It pays in "
            f"{times[Finding.PAYS.value]}, makes no difference in "
            f"{times[Finding.NO_DIFFERENCE.value]}, harms in {times[Finding.HARMS.value]} and is "
            f"open in {times[Finding.OPEN.value]}."
        )
    return " ".join(texts)


def draw(lines: Lines, file: Path) -> None:
    """Draw the gain of every cell, with its interval, a panel for each kind of horizon."""
    head, *rows = lines
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    names = list(dict.fromkeys(cell["data"] for cell in cells))
    periods = list(dict.fromkeys(cell["periods"] for cell in cells))
    with picture(file, 10, 4.6) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for cell in cells:
            number = periods.index(cell["periods"])
            axes = panels[0 if cell["steps"] == "1" else 1]
            style = {"color": look(number)["color"]}
            height = names.index(cell["data"]) + 0.2 * (number - 1.5)
            if cell["95% CI"] != UNKNOWN:
                axes.plot([*map(percent, cell["95% CI"].split(" to "))], [height] * 2, **style)
            label = f"periods: {cell['periods']}"
            axes.plot(percent(cell["MAE gain"]), height, "o", label=label, **style)
        for axes, title in zip(
            panels, ("one step ahead", "a day (METR-LA: an hour) ahead"), strict=True
        ):
            axes.axvline(0, color="grey", linewidth=0.8)
            axes.set(title=title, xlabel="gain in MAE, percent", xlim=(-20, 20))
        panels[0].set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()
        labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(labelled.values(), labelled, loc="outside lower center", ncols=len(labelled))


def percent(text: str) -> float:
    return float(text.replace("−", "-").removesuffix("%"))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help="; ".join(SETS))
    parser.add_argument("--page-only", action="store_true", help="compute nothing")
    arguments = parser.parse_args()
    require_names(parser, arguments.sets, SETS, "set")
    torch.set_num_threads(1)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if not arguments.page_only:
        for name in arguments.sets or SETS:
            for steps in SETS[name].steps:
                compute(name, steps)
    files = [
        OUTPUT / f"{name}-{steps}-{periods}.json"
        for name, chosen in SETS.items()
        for steps in chosen.steps
        for periods in chosen.periods
    ]
    cells = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    runs = f"`python -m {MAKER}`, seed 0"
    for section, lines_of_cells in (("masked", masked_lines_of), ("cells", lines_of)):
        head = with_origin(lines_of_cells([]), "", "")
        rows = (
            with_origin(lines_of_cells([cell]), runs, cell["made"].replace("; ", " on "))[1]
            for cell in cells
        )
        lines = publish(PAGE, section, MAKER, [*head, *rows], SHOWN[section])
    write_section(PAGE, "summary", MAKER, [summary_of(lines)])
    draw(lines, PAGE.with_suffix(".svg"))


def compute(name: str, steps: int) -> None:
    """Compute the cells of a data set whose clients have enough periods, and that lack a file."""
    chosen = SETS[name]
    settings = settings_in(chosen, steps, 0)
    series = series_of(chosen, settings)
    periods_available = min(
        len(make_windows(client_series, settings.data).batches) for client_series in series
    )
    for periods in chosen.periods:
        file = OUTPUT / f"{name}-{steps}-{periods}.json"
        if periods >= periods_available or file.exists():
            continue
        groups = list(map(chosen.group, series))
        errors, blocks = errors_of(series, settings_in(chosen, steps, periods), periods, groups)
        cell = {"data": name, "steps": steps, "periods": periods}
        cell |= {"errors": errors, "blocks": blocks}
        cell["made"] = f"{date.today().isoformat()}; {processors()}"
        file.write_text(json.dumps(cell), encoding="utf-8")
        ratios = [
            f"{m} {geometric_mean(ratio(errors, m, ALONE)):.3f}" for m in errors if m != ALONE
        ]
        print(f"{name}, {steps} steps, {periods or 'all'} periods:", *ratios, flush=True)


if __name__ == "__main__":
    main()
