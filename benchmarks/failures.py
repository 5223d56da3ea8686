"""The table of docs/reliability.md: what an attack on an earlier version did, done again.

    python -m benchmarks.failures [--list] [--page]

Each row does what its number of the attack did, to the real code: hostile replies go through
Flower's serialisation to a server in this process; programs that mean harm run in a gate's process
apart. What needs a federation of real processes has its own command, which the row names. Prints a
row for each; exit code 0 if all happened as expected. A new row is a function with `failure` above.
"""

from __future__ import annotations

import argparse
import json
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
from fedproto_app.core.tasks import small_run
from flwr.app import ConfigRecord, Message
from numpy.lib import format as npy
from PIL import Image

from benchmarks.machine import machine_line
from benchmarks.result_runs import ROOT, write_section
from fedproto_app.core.errors import DataError, FederationError, SettingsError
from fedproto_app.core.wire import ARRAYS, array_record, numpy_arrays
from fedproto_app.data.images.decoding import decode
from fedproto_app.data.sources import load_series
from fedproto_app.engine.local import AT_ONCE, FIRST_ID, LocalGrid, nodes_sharing
from fedproto_app.node.policy import CodePolicy, require_named_code
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server_app import conduct
from fedproto_app.settings import DataSettings, Settings, settings_from

PAGE = ROOT / "docs" / "reliability.md"
HOSTILE = FIRST_ID + 1  # of two nodes
Tamper = Callable[[Message], Message]


class Failure(NamedTuple):
    """One row: the number of the attack, what is done, and the command or function that does it."""

    number: int
    done: str
    do: Callable[[Path], str]
    by: str


FAILURES: list[Failure] = []


def failure(number: int, done: str, by: str = "") -> Callable[[Callable[[Path], str]], None]:
    """Enter a row. The function does it in an empty folder, raises AssertionError if it is not
    mended, and says what happened. by: the command that does it, if not this one."""

    def enter(do: Callable[[Path], str]) -> None:
        FAILURES.append(Failure(number, done, do, by or "`benchmarks.failures`"))

    return enter


class HostileGrid(LocalGrid):
    """Two nodes, the second of which alters its replies to orders."""

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
    """A run with a hostile node: it must end well, and name and refuse that node alone."""
    settings = settings_of(folder, **changes)
    configs = nodes_sharing(settings.data, 2, folder / "state")
    with RunFolder(settings) as run:
        conduct(HostileGrid(settings, configs, tamper), settings, run)
    rounds = read_rounds(run.path)
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


def with_told(change: Callable[[dict[str, Any]], None]) -> Tamper:
    def tamper(reply: Message) -> Message:

        record = reply.content.config_records["told"]
        told = json.loads(record["json"])  # type: ignore[arg-type]
        change(told)
        reply.content["told"] = ConfigRecord({**record, "json": json.dumps(told).encode()})
        return reply

    return tamper


@failure(1, "FUELS: a node sends prototypes of 3e38, which are finite")
def huge_prototypes(folder: Path) -> str:
    return attacked(folder, with_arrays(3e38), method="fuels")


@failure(1, "FedAvg: a node sends a model of 3e38")
def huge_models(folder: Path) -> str:
    return attacked(folder, with_arrays(3e38), method="fedavg")


@failure(1, "a node reports losses of 1.7e308")
def huge_losses(folder: Path) -> str:
    def change(told: dict[str, Any]) -> None:
        told["losses"] = {name: [1.7e308] * len(v) for name, v in told["losses"].items()}

    return attacked(folder, with_told(change), method="fuels")


@failure(2, "a second server writes a run's folder while the first one lives")
def second_writer(folder: Path) -> str:
    with RunFolder(settings_of(folder)):
        again = settings_of(folder, **{"output.resume": True})
        try:
            RunFolder(again)
        except SettingsError as error:
            return f"refused: {str(error).partition(' since')[0].replace(str(folder), '…')}"
    raise AssertionError("two processes write one run")


@failure(4, "a run asks for `local-epochs = 10**9`")
def many_epochs(folder: Path) -> str:
    settings = settings_of(folder, **{"local-epochs": 10**9})
    configs = nodes_sharing(settings.data, 2, folder / "state")
    with RunFolder(settings) as run:
        try:
            conduct(LocalGrid(settings, configs), settings, run)
        except FederationError as error:
            return f"no site takes part: {error}"
    raise AssertionError("the sites trained")


@failure(4, 'a run\'s settings name code of the site: `data.source = "shutil:rmtree"`')
def named_code(folder: Path) -> str:
    try:
        require_named_code({"data.source": "shutil:rmtree"}, CodePolicy())
    except SettingsError as error:
        return f"refused: {error}"
    raise AssertionError("it was called")


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


@failure(4, "a program that is let in leaves a daemon behind")
def daemon(folder: Path) -> str:
    command = [sys.executable, "-c", _DAEMON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    pid, left = map(int, done.stdout.split())
    assert not Path(f"/proc/{pid}").exists(), "it lives"
    return f"{left} process ended with its order"


@failure(5, "FedAvg: a node claims 10**9 samples for each client, to be the whole mean")
def huge_weight(folder: Path) -> str:
    def change(told: dict[str, Any]) -> None:
        told["samples"] = [10**9] * len(told["samples"])

    return attacked(folder, with_told(change), method="fedavg")


@failure(7, "a node's failures hold codes of a terminal, and 20,000 of them")
def codes(folder: Path) -> str:
    def change(told: dict[str, Any]) -> None:
        told["failed"] = {f"\x1b[31m{number}": "\x1b]0;x\x07" for number in range(20_000)}

    said = attacked(folder, with_told(change), method="fuels")
    text = (folder / "runs" / "run" / "rounds.jsonl").read_bytes()
    assert b"\x1b" not in text
    assert len(text) < 10**6
    return f"{said}; rounds.jsonl has {len(text) / 1000:.0f} kB and no code"


@failure(10, "an npz of 300 bytes declares 4 exabytes")
def npz(folder: Path) -> str:
    with zipfile.ZipFile(folder / "x.npz", "w") as file, file.open("values.npy", "w") as to:
        shape = {"descr": "<f8", "fortran_order": False, "shape": (2**59, 1)}
        npy.write_array_header_1_0(to, shape)
    try:
        load_series(DataSettings(source="npz", path=str(folder / "x.npz")))
    except DataError as error:
        return f"refused: {str(error).replace(str(folder), '…')}"
    raise AssertionError("it was read")


@failure(10, "a PNG of 20 kB has 13,000 x 13,000 pixels")
def png(folder: Path) -> str:

    file = BytesIO()
    Image.new("1", (13_000, 13_000)).save(file, "PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            decode(file.getvalue())
    except ValueError as error:
        return f"refused before it is decoded: {error}"
    raise AssertionError("it was decoded")


# What real processes are needed for, or an engine: number, what is done, what happens, command.
ELSEWHERE = (
    (
        2,
        "`docker kill` of the SuperLink in a run",
        "`fedproto run` asks again for ten minutes and tells a lost connection from a failed run; "
        "the run is resumed in containers",
        "`make guide`",
    ),
    (
        3,
        "a node with a key of its own comes with another site's name, before it, beside it, after",
        "refused by name: a node is called as its key was registered; the place, orders and "
        "guidance stay the true one's",
        "`tests/server/test_identity.py`, `make faults FAULTS=name-taken`",
    ),
    (
        6,
        "the first node that comes has images of another shape; one node declares 19,999 clients",
        "the shape is that of most nodes; a node has a quota of clients",
        "`tests/server/test_identity.py`",
    ),
    (
        4,
        "a run's code reads the secret or the audit log, ends the gate, reaches the network; a "
        "node's container reaches the control port",
        "refused, each",
        "`make containers`",
    ),
    (
        4,
        "a run brings a program of its own",
        "the site's own copy runs instead; what a site lists runs and leaves nothing",
        "`tests/integration/test_gate.py`",
    ),
    (
        8,
        "the commands of the guide are typed as they stand: a server, two sites, a late one, a "
        "resumed run, an upgrade",
        "they work; the chapter of one machine was not typed yet",
        "`make guide`",
    ),
    (9, "SIGKILL of `fedproto run`", "nothing goes on", "`python -m benchmarks.endings`"),
    (
        10,
        "`register` reads the nodes' private keys",
        "it has a folder of public keys alone",
        "`make containers`",
    ),
)


def table(seen: list[tuple[Failure, str]]) -> list[str]:
    """The lines of the section of the page."""
    rows = [(one.number, one.done, said, one.by) for one, said in seen]
    rows += ELSEWHERE
    head = ["| no. | what is done | what happens now | done by |", "| ---: | --- | --- | --- |"]
    cells = [" | ".join(map(str, row)) for row in sorted(rows, key=lambda row: row[0])]
    return [*head, *(f"| {row} |" for row in cells), "", machine_line()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{one.number}  {one.done}" for one in FAILURES))
        return
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    seen, good = [], True
    for one in FAILURES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = one.do(Path(folder))
            except AssertionError as error:
                good, said = False, f"NOT MENDED: {error}"
        seen.append((one, said))
        print(f"{one.number:2}  {one.done}: {said}", flush=True)
    if arguments.page:
        write_section(PAGE, "failures", "benchmarks.failures", table(seen))
    sys.exit(not good)


if __name__ == "__main__":
    main()
