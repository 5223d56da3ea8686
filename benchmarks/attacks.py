"""The table of docs/robust.md: what hostile clients do to an averaged model, by rule.

    python -m benchmarks.attacks [--rounds 15] [--page]

FedAvg on ten sites of the app's synthetic traffic, one client a node, in this process. A hostile
node trains as asked and then alters what it sends; it knows the model that it was sent. The error
is the mean test MSE of the honest clients by the last averaged model.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from flwr.app import Message, MessageType
from rich.console import Console
from rich.progress import track

from benchmarks.machine import machine_line
from benchmarks.result_runs import ROOT, write_section
from fedproto_app.engine.local import AT_ONCE, FIRST_ID, LocalGrid, nodes_sharing
from fedproto_app.messages import Arrays
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_clients
from fedproto_app.server_app import conduct
from fedproto_app.settings import AggregationSettings, Settings, settings_from
from fedproto_app.tasks.table import small_run
from fedproto_app.wire import ARRAYS, array_record, numpy_arrays

CLIENTS = 10
HOSTILE = (0, 1, 2, 4)  # of the ten
PREPARED_FOR = 0.4  # aggregation.hostile-share of all runs
RULES: tuple[str, ...] = get_args(AggregationSettings.model_fields["rule"].annotation)
Attack = Callable[[Arrays, Arrays, int], Arrays]  # (the model sent, the model trained, the round)


def flipped(before: Arrays, after: Arrays, server_round: int) -> Arrays:
    """The step in the other direction."""
    return _stepped(before, after, -1.0)


def flipped_tenfold(before: Arrays, after: Arrays, server_round: int) -> Arrays:
    """Ten times the step, in the other direction."""
    return _stepped(before, after, -10.0)


def noise(before: Arrays, after: Arrays, server_round: int) -> Arrays:
    """A step of ten times the size in a direction of its own: the clients do not collude."""
    rng = np.random.default_rng([server_round, int(abs(_length(after) * 1e6)) % 2**31])
    return _towards(before, after, rng)


def together(before: Arrays, after: Arrays, server_round: int) -> Arrays:
    """A step of ten times the size in one direction that all hostile clients share."""
    return _towards(before, after, np.random.default_rng(0))


ATTACKS: dict[str, Attack] = {
    "step flipped": flipped,
    "flipped, tenfold": flipped_tenfold,
    "noise, tenfold": noise,
    "one direction together, tenfold": together,
}


def _stepped(before: Arrays, after: Arrays, factor: float) -> Arrays:
    return {
        name: (before[name] + factor * (value - before[name])).astype(np.float32)
        for name, value in after.items()
    }


def _towards(before: Arrays, after: Arrays, rng: np.random.Generator) -> Arrays:
    step = {name: value - before[name] for name, value in after.items()}
    draws = {name: rng.standard_normal(value.shape) for name, value in step.items()}
    scale = 10 * _length(step) / _length(draws)
    return {name: (before[name] + scale * draws[name]).astype(np.float32) for name in after}


def _length(arrays: Mapping[str, Any]) -> float:
    return float(
        np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values()))
    )


class HostileGrid(LocalGrid):
    """The last nodes alter what they send after training."""

    def __init__(self, settings: Settings, folder: Path, hostile: int, attack: Attack) -> None:
        super().__init__(settings, nodes_sharing(settings.data, CLIENTS, folder))
        self.hostile = {FIRST_ID + CLIENTS - 1 - number for number in range(hostile)}
        self._attack = attack

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        order = message.metadata
        trains = order.message_type == MessageType.TRAIN and reply and not reply.has_error()
        if trains and reply is not None and order.dst_node_id in self.hostile:
            before = numpy_arrays(message.content.array_records[ARRAYS])
            sent = numpy_arrays(reply.content.array_records[ARRAYS])
            # Where each client's own model is sent, it has an axis of one client.
            after = {name: value.reshape(before[name].shape) for name, value in sent.items()}
            lies = self._attack(before, after, int(order.group_id))
            shaped = {name: lies[name].reshape(value.shape) for name, value in sent.items()}
            reply.content[ARRAYS] = array_record(shaped)
        return reply


@dataclass(frozen=True)
class Trial:
    """One run."""

    rule: str
    attack: str
    hostile: int


def trials() -> Iterator[Trial]:
    """Every run of the table; without a hostile client all attacks are one."""
    first = next(iter(ATTACKS))
    for rule in RULES:
        for hostile in HOSTILE:
            for attack in ATTACKS if hostile else [first]:
                yield Trial(rule, attack, hostile)


def error_of(trial: Trial, rounds: int, folder: Path) -> float:
    """The mean test MSE of the honest clients by the last averaged model."""
    settings = settings_from(
        {
            **small_run("forecasting"),
            **AT_ONCE,
            "method": "fedavg",
            "rounds": rounds,
            "evaluate-every": rounds,
            "keep": "last",
            "data.synthetic.clients": CLIENTS,
            "aggregation.rule": trial.rule,
            "aggregation.hostile-share": PREPARED_FOR,
            "output.dir": str(folder),
            "output.name": "run",
            "output.pictures": False,
        }
    )
    grid = HostileGrid(settings, folder / "state", trial.hostile, ATTACKS[trial.attack])
    with RunFolder(settings) as run:
        conduct(grid, settings, run)
        rows = read_clients(run.path)
    nodes = {str(node - FIRST_ID) for node in grid.hostile}
    errors = [float(row["mse"]) for row in rows if row["node"] not in nodes]
    assert len(errors) == CLIENTS - trial.hostile
    return float(np.mean(errors))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--page", action="store_true", help="write the table to docs/robust.md")
    arguments = parser.parse_args()
    console = Console()
    errors = {}
    for trial in track(list(trials()), "runs", console=console):
        with tempfile.TemporaryDirectory() as folder:
            errors[trial] = error_of(trial, arguments.rounds, Path(folder))
    lines = [*table(errors), "", _footnote(arguments.rounds)]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if arguments.page:
        write_section(ROOT / "docs" / "robust.md", "attacks", "benchmarks.attacks", lines)


def table(errors: Mapping[Trial, float]) -> list[str]:
    """A line an attack and rule; of each column the lowest error of an attack is bold."""
    head = ["what hostile clients send", "rule", *(f"{10 * count}%" for count in HOSTILE)]
    lines = [head, ["---", "---", *["---:"] * len(HOSTILE)]]
    first = next(iter(ATTACKS))
    for attack in ATTACKS:

        def error(rule: str, count: int, attack: str = attack) -> float:
            return errors[Trial(rule, attack if count else first, count)]

        for rule in RULES:
            cells = []
            for count in HOSTILE:
                text = f"{error(rule, count):.3g}"
                best = min(error(other, count) for other in RULES)
                cells.append(f"**{text}**" if error(rule, count) == best else text)
            lines.append([attack, f"`{rule}`", *cells])
    return [f"| {' | '.join(line)} |" for line in lines]


def _footnote(rounds: int) -> str:
    return (
        f"`python -m benchmarks.attacks --rounds {rounds} --page`: {CLIENTS} clients of "
        f"synthetic-traffic, `aggregation.hostile-share` = {PREPARED_FOR:g}, seed 0, {rounds} "
        f"rounds; {machine_line()}."
    )


if __name__ == "__main__":
    main()
