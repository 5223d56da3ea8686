"""docs/results/covariates.md: what noise costs that protects the clients' shared response.

    python -m benchmarks.response_noise wind
    python -m benchmarks.response_noise pm25 --newcomers 0,4,8

Each client once comes with 14 days of data to the others, who have all days before. Forecasts are a
day ahead, by Kindred alone on what the shared response leaves, so nothing but the response is
shared. The sums are the app's own: the learners' rows, clipped, with the noise that all nodes of a
masked sum add together, one client at a node, and what the server makes of them.

For more clients than there are, the others' series are cut into parts, each a client of its own.
The whole clients' total is scaled to more clients, to find the number at which noise costs
little. Figures of a newcomer are kept in runs/results/covariates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.pages import Lines, Shown, made_today, publish, table_texts, with_origin
from benchmarks.parts import geometric_mean, parser_of
from benchmarks.response_results import (
    DAY,
    OUTPUT,
    PAGE,
    SETS,
    STARTS,
    DayAhead,
    Start,
    series_of,
    without,
)
from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import stream_seed
from fedproto_app.core.round import Round, Total
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.strategies.response.stage import ROW, MomentsLearner, SumsLearner, SumsStrategy
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.discrete_noise import KeyStream, Noise
from fedproto_app.trust.fixed_point import Layout, NoiseShare, Sums, packed, unpacked
from fedproto_app.trust.masks import fewest
from fedproto_app.trust.privacy_loss import clipped_rows, privacy_plan

MAKER = "benchmarks.response_noise"
NEWCOMER = "14"  # days
PARTS = (100, 400)  # clients
EPSILONS = (8.0, 3.0, 1.0)
MORE = (100, 300, 1000, 3000, 10_000, 30_000)  # clients for the last column
PLAIN = "masked, without noise"  # the sums as they are, which noise cannot protect
SHOWN = {
    "noise": Shown(keys=2, columns=()),
    "costs": Shown(
        keys=2, columns=("100 clients", "1,000 clients", "3,000 clients", "30,000 clients")
    ),
}
SCALES = {  # usual values of wind, and of the weather in Beijing
    "wind": "u 0 3, v 0 3, wind_speed 5 2.5",
    "pm25": "temperature 13 11, pressure 1010 10, dew_point 3 14, rain 0 0.2, wind_speed 1 0.5, "
    "north 0 1, east 0 1",
}


class Shared:
    """What some clients send in a form, without noise."""

    def __init__(
        self,
        start: Start,
        form: Mapping[str, str],
        clients: Sequence[ClientWindows],
        moments: Arrays,
    ) -> None:
        silent = {"method": "seasonal-naive", "aggregation.secure": True}  # but for the response
        silent["data.known"] = ",".join(start.series[0].columns)
        self._flat = {**flat_settings(start.settings), **silent, **form}
        self._start, settings = copy(start), settings_from(self._flat)
        self._start.settings = settings
        self._start.task = type(start.task)(settings, start.shape)
        self._moments: Arrays = {} if settings.response.scales else moments
        totals = self._strategy(settings).totals
        self.sums: dict[str, Any] = {}
        for client in clients:
            for name, array in self._start.sums(SumsLearner, [client], totals).items():
                row = array.astype(np.float64)
                if name == ROW:
                    row = clipped_rows(row, settings.privacy.clip)
                self.sums[name] = self.sums.get(name, 0.0) + row
        self.clients = len(clients)

    def _strategy(self, settings: Any) -> SumsStrategy:
        averaging = Averaging(settings.aggregation, privacy_plan(settings))
        federation: Any = SimpleNamespace(shape=self._start.shape, averaging=averaging)
        return SumsStrategy(settings, federation, dict(self._moments))

    def totals(self, epsilon: float = 0.0, seed: str = "", clients: int = 0) -> Arrays:
        """Return the totals that nodes get. epsilon: 0 for no noise. clients: as if there were so
        many, and 0: as they are."""
        count = clients or self.clients
        sums = {name: array * (count / self.clients) for name, array in self.sums.items()}
        noise = {"privacy.mechanism": "gaussian", "privacy.epsilon": epsilon} if epsilon else {}
        settings = settings_from({**self._flat, **noise})
        if (plan := privacy_plan(settings)) is not None:
            rules = settings.aggregation
            least = fewest(rules.secure_minimum, rules.secure_share, count)
            # All nodes remain, so their shares together have count/least of the variance needed.
            multiplier = plan.noise_multiplier * np.sqrt(count / least)
            noise_of_sums = {ROW: Noise(multiplier, settings.privacy.clip, sums[ROW].size)}
            stream = KeyStream(stream_seed(0, seed).to_bytes(32, "big"))
            row = Sums({ROW: sums[ROW]}, {})
            total = packed(row, rules.secure_bits, 1, NoiseShare(noise_of_sums, 1, stream))
            sums[ROW] = unpacked(total, Layout.from_sums(row), rules.secure_bits).values[ROW]
        strategy = self._strategy(settings)
        strategy.received.take_total(Total(sums, count))
        strategy.update(Round())
        return strategy.totals


def peers_of(start: Start, newcomer: int, parts: int) -> list[ClientWindows]:
    """Return the other clients, whole if parts is 0, else cut into as many parts or a few more."""
    peers = without(range(len(start.series)), newcomer)
    if not parts:
        return [start.windows(row, "all") for row in peers]
    days = start.now // DAY * len(peers) // parts
    clients = []
    for row in peers:
        for first in range(0, start.now - days * DAY + 1, days * DAY):
            end = first + days * DAY
            part = start.series[row].part(first, end + DAY)  # a part needs a test part of its own
            time = np.datetime64(0, "h") + np.timedelta64(start.series[row].start + end, "h")
            changes = {"test_start": str(time), "scale": start.declared(row)}
            with suppress(DataError):  # a part without a value to test on
                clients.append(make_windows(part, start.settings.data.model_copy(update=changes)))
    return clients


def figures_of(name: str, row: int) -> dict[str, float]:
    """Return the errors of a newcomer relative to its response alone, by form, parts and ε.
    With ε = 1 and "as if", by the number of clients instead of parts."""
    file = OUTPUT / f"noise-{name}-{row}.json"
    figures: dict[str, float] = {}
    if file.exists():
        figures = json.loads(file.read_text(encoding="utf-8"))
    missing = [parts for parts in (0, *PARTS) if f"{PLAIN}/{parts}" not in figures]
    if not missing:
        return figures
    start = Start(series_of(name), STARTS[name][1])
    newcomer = start.windows(row, NEWCOMER)

    def error_of(totals: Arrays) -> float:
        return DayAhead(start.without_response(newcomer, totals)).alone(start.kindred)[0][1]

    alone = error_of({})
    for parts in missing:
        clients = [*peers_of(start, row, parts), newcomer]
        moments = start.sums(MomentsLearner, clients, {})
        for form, settings in forms(name).items():
            shared = Shared(start, settings, clients, moments)
            for epsilon in (0.0, *EPSILONS):
                totals = shared.totals(epsilon, f"{row} {parts} {form} {epsilon}")
                figures[f"{form}/{parts}/{epsilon}"] = error_of(totals) / alone
            for count in () if parts else MORE:
                totals = shared.totals(1.0, f"{row} {count} {form}", count)
                figures[f"{form}/{count}/as if"] = error_of(totals) / alone
        figures[f"{PLAIN}/{parts}"] = error_of(Shared(start, {}, clients, moments).totals()) / alone
        OUTPUT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures), encoding="utf-8")
        print(name, row, parts, flush=True)
    return figures


def lines_of(name: str, newcomers: Sequence[int]) -> tuple[Lines, Lines]:
    """Return the table of a data set, and what ε = 1 costs by the number of clients."""
    all_figures = [figures_of(name, row) for row in newcomers]
    mean = {key: geometric_mean([f[key] for f in all_figures]) for key in all_figures[0]}
    lines = [["data", "what is shared", "whole clients", *(f"{parts} parts" for parts in PARTS)]]
    lines.append([name, PLAIN, *(f"{mean[f'{PLAIN}/{parts}']:.3f}" for parts in (0, *PARTS))])
    costs = [["data", "ε = 1", *(f"{count:,} clients" for count in MORE)]]
    for form in forms(name):
        for epsilon in (0.0, *EPSILONS):
            noise = f"ε = {epsilon:g}" if epsilon else "without noise"
            cells = [f"{mean[f'{form}/{parts}/{epsilon}']:.3f}" for parts in (0, *PARTS)]
            lines.append([name, f"{form}, {noise}", *cells])
        free = mean[f"{form}/0/0.0"]
        costs.append(
            [name, form, *(f"{mean[f'{form}/{count}/as if'] / free - 1:+.1%}" for count in MORE)]
        )
    return lines, costs


def forms(name: str) -> dict[str, dict[str, str]]:
    """Return the settings of the sums that noise can protect."""
    return {
        "private columns": {"response.scales": SCALES[name]},
        "public columns": {"response.columns": "public"},
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("set", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--newcomers", default="", help="numbers of clients, by default all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    name, chosen = arguments.set, arguments.newcomers
    newcomers = list(map(int, chosen.split(","))) if chosen else range(len(series_of(name)))
    command = f"python -m {MAKER} {name}" + (f" --newcomers {chosen}" if chosen else "")
    runs = f"`{command}`, δ = 10⁻⁵, {NEWCOMER} days, seed 0"
    for section, lines in zip(SHOWN, lines_of(name, newcomers), strict=True):
        print(*table_texts(lines, texts=2), sep="\n")
        publish(PAGE, section, MAKER, with_origin(lines, runs, made_today()), SHOWN[section])


if __name__ == "__main__":
    main()
