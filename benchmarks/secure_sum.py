"""Masked sums through real SuperNodes: what they cost, and a node killed in each of their steps.

    python -m benchmarks.secure_sum [TRIAL ...] [--output DIR] [--no-page]

A SuperLink and four SuperNodes on loopback, with TLS and registered keys, anew for each trial, and
FedAvg on eight synthetic clients. Each site's file names the others' signing keys. The trials are
`cost` (the run with plain means, and with masked sums) and `keys`, `shares`, `train`, `unmask`:
SIGKILL of one node in this step of round 2. The last model is compared with a plain run's in
this process without that node. Writes the tables of docs/secure-sum.md from the rows in the output
folder.

Exit code: 0 if every model is as it should be, else 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import tomli_w
from flwr.app import Message, MessageType
from safetensors.numpy import load_file

from benchmarks.faults import hook
from benchmarks.in_process import conducted
from benchmarks.local_federation import LocalFederation, node_config, with_fault
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import parser_of, require_names
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import AT_ONCE, LocalGrid
from fedproto_app.node.masking import signer_of
from fedproto_app.node.site import Site
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import Settings, flower_config, settings_from

PAGE = ROOT / "docs" / "secure-sum.md"
NODES = ("airport", "harbour", "oldtown", "station")
HIT = NODES[1]
ROUNDS = 2
COST = "cost"
TRIALS = (COST, *hook.STEPS)
ALIKE = 1e-5  # difference of a value below 1: float32, after two rounds
SETTINGS = {
    "method": "fedavg",
    "rounds": ROUNDS,
    "evaluate-every": ROUNDS,
    "model.representation-dim": 64,
    "data.synthetic.clients": 8,
    "data.synthetic.days": 14,
    "nodes.minimum": len(NODES),
    "nodes.start-deadline": 600.0,
    "nodes.round-deadline": 300.0,
    "output.pictures": False,
}
STEP_TEXTS = {
    "keys": "to send its keys",
    "shares": "to send its shares",
    "train": "to send its masked sums",
    "unmask": "to send its shares of the masks",
}


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that blocks end their processes
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    for trial in arguments.trials or TRIALS:
        with tempfile.TemporaryDirectory(prefix="fedproto-secure-sum-") as folder:
            print(f"{trial} …", flush=True)
            row = _costs(Path(folder)) if trial == COST else _killed(Path(folder), trial)
        print(json.dumps(row), flush=True)
        (output / f"{trial}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    rows = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in output.glob("*.json")
    }
    if not arguments.no_page:
        footnote = f"`python -m benchmarks.secure_sum`, {date.today()}, {machine_line()}."
        write_section(PAGE, "cost", "benchmarks.secure_sum", [*_cost_table(rows), "", footnote])
    print("\n".join(_killed_table(rows)))
    sys.exit(0 if all(row["distance"] <= ALIKE for row in rows.values()) else 1)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(TRIALS))
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "secure-sum")
    parser.add_argument("--no-page", action="store_true", help="leave docs/secure-sum.md alone")
    arguments = parser.parse_args()
    require_names(parser, arguments.trials, TRIALS, "trial")
    return arguments


# --- trials -----------------------------------------------------------------------------------


def _costs(folder: Path) -> dict[str, Any]:
    """Make both runs in one federation. Return bytes, seconds, and the distance of the models."""
    row: dict[str, Any] = {}
    with LocalFederation(folder / "federation") as federation:
        for name in NODES:
            federation.add_node(name, _config(folder, name))
        for kind, secure in (("plain", False), ("masked", True)):
            lines = _run(federation, _settings(folder, kind, secure=secure))
            row[kind] = {
                "up": mean(line["bytes_up"] for line in lines),
                "down": mean(line["bytes_down"] for line in lines),
                "seconds": mean(line["seconds"]["total"] for line in lines),
            }
    return row | {"distance": _apart(folder / "runs" / "plain", folder / "runs" / "masked")}


def _killed(folder: Path, step: str) -> dict[str, Any]:
    """Kill a node that hangs in a step of round 2."""
    with LocalFederation(folder / "federation") as federation:
        nodes = {}
        for name in NODES:
            fault = with_fault(folder, f"hang-in-{step}" if name == HIT else "")
            nodes[name] = federation.add_node(name, _config(folder, name), environment=fault)
        settings = _settings(folder, "masked", secure=True)
        run = federation.submit(flower_config(settings))
        nodes[HIT].wait_for_log(f"hangs in {step}", deadline=900)
        nodes[HIT].kill()
        federation.complete(run, deadline=1200)
    lines = read_rounds(folder / "runs" / "masked")
    reasons = [
        refusal["reason"] for line in lines for refusal in line["refused"] if refusal["node"] == HIT
    ]
    return {
        "clients": [line["clients"] for line in lines],
        "seconds": lines[1]["seconds"]["total"],
        "reason": reasons[0] if reasons else "",
        "distance": _apart(_without(folder, step), folder / "runs" / "masked"),
    }


class _Lossy(LocalGrid):
    """A grid whose second node stops replying in round 2, before or after training."""

    def __init__(self, settings: Settings, configs: list[dict[str, Any]], trains: bool) -> None:
        super().__init__(settings, configs)
        self._trains = trains

    def answer(self, message: Message) -> Message | None:
        metadata = message.metadata
        late = metadata.dst_node_id == FIRST_ID + NODES.index(HIT) and int(metadata.group_id) >= 2
        last = (metadata.message_type, metadata.group_id) == (MessageType.TRAIN, "2")
        return None if late and not (self._trains and last) else super().answer(message)


def _without(folder: Path, step: str) -> Path:
    """Run in this process without masks and without the same node."""
    settings = _settings(folder, "reference", secure=False, **AT_ONCE)
    configs = [{**_config(folder, name), "state-dir": str(folder / "own")} for name in NODES]
    return conducted(_Lossy(settings, configs, step == "unmask"), settings)


def _run(federation: LocalFederation, settings: Settings) -> list[dict[str, Any]]:
    federation.complete(federation.submit(flower_config(settings)), deadline=1200)
    return read_rounds(Path(settings.output.dir) / settings.output.name)


def _settings(folder: Path, name: str, *, secure: bool, **changes: Any) -> Settings:
    output = {"output.dir": str(folder / "runs"), "output.name": name}
    return settings_from({**SETTINGS, **output, "aggregation.secure": secure, **changes})


def _config(folder: Path, name: str) -> dict[str, str | int]:
    states = {name: str(folder / "state" / name) for name in NODES}
    signers = [signer_of(Site(state_dir=state)).line for state in states.values()]
    file = folder / f"{name}.toml"
    file.write_text(tomli_w.dumps({"masked-sums": {"known": signers}}))
    config = node_config(name, NODES.index(name), len(NODES), Path(states[name]))
    return {**config, "site": str(file)}


def _apart(first: Path, second: Path) -> float:
    """Return the largest difference between values of the two last models."""
    ours, others = (load_file(run / "model" / "global.safetensors") for run in (first, second))
    return max(float(np.abs(ours[name] - others[name]).max()) for name in ours)


# --- tables -----------------------------------------------------------------------------------


def _cost_table(rows: Mapping[str, Any]) -> list[str]:
    lines = [["round", "KB up", "KB down", "seconds"]]
    for kind in ("plain", "masked") if COST in rows else ():
        row = rows[COST][kind]
        traffic = (f"{row[way] / 1e3:,.0f}" for way in ("up", "down"))
        lines.append([kind, *traffic, f"{row['seconds']:.1f}"])
    distance = f"{rows[COST]['distance']:.1e}" if COST in rows else "–"
    return [*table_texts(lines), "", f"Largest difference between the final models: {distance}."]


def _killed_table(rows: Mapping[str, Any]) -> list[str]:
    lines = [["SIGKILL of a node when it has", "clients in the sums of rounds 1, 2"]]
    lines[0] += ["reason in `rounds.jsonl`", "seconds of round 2", "difference"]
    for step in hook.STEPS:
        if row := rows.get(step):
            clients, off = ", ".join(map(str, row["clients"])), f"{row['distance']:.1e}"
            reason = row["reason"].partition(" — ")[0].replace("Error: ", "")
            lines.append([STEP_TEXTS[step], clients, reason, f"{row['seconds']:.0f}", off])
    return table_texts(lines, texts=3)


if __name__ == "__main__":
    main()
