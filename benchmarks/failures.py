"""Attacks by hostile replies, programs and files, which a server and a site must withstand.

    python -m benchmarks.failures [--list]

Hostile replies go through Flower's serialisation to a server in this process, and hostile programs
run in a gate's separate process. Prints a row for each attack. The exit code is 0 if every outcome
was as expected. To add a row, write a function with the decorator `failure`.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Message
from numpy.lib import format as npy
from PIL import Image

from benchmarks.attacks.declared import fields_of, say
from benchmarks.in_process import conducted
from fedproto_app.core.errors import DataError, FederationError, SettingsError
from fedproto_app.core.wire import ARRAYS, array_record, numpy_arrays
from fedproto_app.data.formats.class_folders import decode
from fedproto_app.data.sources import load_series
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.node.policy import CodePolicy, require_named_code
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.tasks.table import small_run

HOSTILE = FIRST_ID + 1  # of two nodes
Tamper = Callable[[Message], Message]


class Failure(NamedTuple):
    """One row: the attack, and the function that performs it and returns the outcome."""

    attack: str
    perform: Callable[[Path], str]


FAILURES: list[Failure] = []


def failure(attack: str) -> Callable[[Callable[[Path], str]], None]:
    """Enter a row. The function performs the attack in an empty folder and returns the outcome.
    It raises AssertionError if the attack succeeds."""

    def enter(perform: Callable[[Path], str]) -> None:
        FAILURES.append(Failure(attack, perform))

    return enter


def refusal(error: type[Exception], work: Callable[[], object]) -> str:
    """Return why the work is refused. Raises AssertionError if it is done."""
    try:
        work()
    except error as reason:
        return str(reason)
    raise AssertionError("it was not refused")


class HostileGrid(LocalGrid):
    """Two nodes, where the second alters its replies to orders."""

    def __init__(self, settings: Settings, configs: list[dict[str, Any]], tamper: Tamper) -> None:
        super().__init__(settings, configs)
        self._tamper = tamper

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        hostile = message.metadata.dst_node_id == HOSTILE
        training = message.metadata.message_type == "train"
        return self._tamper(reply) if reply is not None and hostile and training else reply


def settings_of(folder: Path, **changes: Any) -> Settings:
    output = {"output.dir": str(folder / "runs"), "output.name": "run"}
    return settings_from({**small_run("forecasting"), **AT_ONCE, **output, **changes})


def attacked(folder: Path, tamper: Tamper, **changes: Any) -> str:
    """Run with a hostile node: the run must end well, and refuse that node alone, by name."""
    settings = settings_of(folder, **changes)
    configs = nodes_sharing(settings.data, 2, folder / "state")
    rounds = read_rounds(conducted(HostileGrid(settings, configs, tamper), settings))
    refused = [refusal for line in rounds for refusal in line["refused"]]
    assert refused, "nothing was refused"
    assert {refusal["node"] for refusal in refused} == {"1"}, refused
    assert len(rounds) == settings.rounds
    return f"{len(rounds)} of {settings.rounds} rounds; refused: {refused[0]['reason']}"


def with_arrays(value: float) -> Tamper:
    def tamper(reply: Message) -> Message:
        arrays = numpy_arrays(reply.content.array_records[ARRAYS])
        huge = {name: np.full_like(array, value) for name, array in arrays.items()}
        reply.content[ARRAYS] = array_record(huge)
        return reply

    return tamper


def with_fields(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tamper:
    """Return what changes a reply's fields. change: from all fields to the new values of some."""

    def tamper(reply: Message) -> Message:
        fields = fields_of(reply)
        say(reply, **change(fields))
        return reply

    return tamper


@failure("FUELS: a node sends prototypes of 3e38")
def huge_prototypes(folder: Path) -> str:
    return attacked(folder, with_arrays(3e38), method="fuels")


@failure("FedAvg: a node sends a model of 3e38")
def huge_models(folder: Path) -> str:
    return attacked(folder, with_arrays(3e38), method="fedavg")


@failure("a node reports losses of 1.7e308")
def huge_losses(folder: Path) -> str:
    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return {"losses": {name: [1.7e308] * len(v) for name, v in fields["losses"].items()}}

    return attacked(folder, with_fields(change), method="fuels")


@failure("a second server writes the folder of a running run")
def second_writer(folder: Path) -> str:
    with RunFolder(settings_of(folder)):
        resumed = settings_of(folder, **{"output.resume": True})
        reason = refusal(SettingsError, lambda: RunFolder(resumed))
    return f"refused: {reason.partition(' since')[0].replace(str(folder), '…')}"


@failure("a run asks for `local-epochs = 10**9`")
def many_epochs(folder: Path) -> str:
    settings = settings_of(folder, **{"local-epochs": 10**9})
    configs = nodes_sharing(settings.data, 2, folder / "state")
    grid = LocalGrid(settings, configs)
    return f"no site takes part: {refusal(FederationError, lambda: conducted(grid, settings))}"


@failure('a run\'s settings name code of the site: `data.source = "shutil:rmtree"`')
def named_code(folder: Path) -> str:
    settings = {"data.source": "shutil:rmtree"}
    reason = refusal(SettingsError, lambda: require_named_code(settings, CodePolicy()))
    return f"refused: {reason}"


_DAEMON = """
import os, signal, time
from fedproto_app.ops.gate.confinement import Apart
def work(job):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    return os.read(read, 20)
apart = Apart(work, None)
pid = int(apart.do(b"job", 60, 100))
left = apart.end()
print(pid, left)
"""


@failure("an admitted program leaves a daemon behind")
def daemon(folder: Path) -> str:
    command = [sys.executable, "-c", _DAEMON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    pid, ended = map(int, done.stdout.split())
    assert not Path(f"/proc/{pid}").exists(), "it lives"
    return f"{ended} process ended with its order"


@failure("FedAvg: a node claims 10**9 samples for each client")
def huge_weight(folder: Path) -> str:
    tamper = with_fields(lambda fields: {"samples": [10**9] * len(fields["samples"])})
    return attacked(folder, tamper, method="fedavg")


@failure("a node reports 20,000 failures with terminal codes")
def codes(folder: Path) -> str:
    failed = {f"\x1b[31m{number}": "\x1b]0;x\x07" for number in range(20_000)}
    message = attacked(folder, with_fields(lambda _: {"failed": failed}), method="fuels")
    text = (folder / "runs" / "run" / "rounds.jsonl").read_bytes()
    assert b"\x1b" not in text
    assert len(text) < 10**6
    return f"{message}; rounds.jsonl has {len(text) / 1000:.0f} kB and no code"


@failure("an npz of 300 bytes declares 4 exabytes")
def npz(folder: Path) -> str:
    with zipfile.ZipFile(folder / "x.npz", "w") as file, file.open("values.npy", "w") as array:
        shape = {"descr": "<f8", "fortran_order": False, "shape": (2**59, 1)}
        npy.write_array_header_1_0(array, shape)
    settings = DataSettings(source="npz", path=str(folder / "x.npz"))
    reason = refusal(DataError, lambda: load_series(settings))
    return f"refused: {reason.replace(str(folder), '…')}"


@failure("a PNG of 20 kB has 13,000 x 13,000 pixels")
def png(folder: Path) -> str:
    file = BytesIO()
    Image.new("1", (13_000, 13_000)).save(file, "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        reason = refusal(ValueError, lambda: decode(file.getvalue()))
    return f"refused before it is decoded: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the attacks' names")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(row.attack for row in FAILURES))
        return
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    success = True
    for attack, perform in FAILURES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = perform(Path(folder))
            except AssertionError as error:
                success, outcome = False, f"SUCCEEDED: {error}"
        print(f"{attack}: {outcome}", flush=True)
    sys.exit(not success)


if __name__ == "__main__":
    main()
