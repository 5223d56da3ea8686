"""The federation in containers, for real: built, started, trained, restarted and cut off.

    python -m benchmarks.containers [--short] [--page] [--base-image IMAGE] [--site-cpus 0.25]

Builds the image and starts docker-compose.yml, the server and three sites on networks of their own
with TLS, registered keys and process isolation, in a project of its own. Prints a row for each
thing that must hold, with the seconds it took, and removes everything it made except the image.
Exit code 0 if all hold. If no Docker engine answers, or the base image is not available, it says so
and ends with 0.

--short leaves out the faults: a node restarted, killed, cut off from the network for a minute, and
the full disk of a site. --page enters the rows into docs/containers.csv. --site-cpus gives each of
a site's two containers such a share of a core, and trains only: a federation must train on slow
machines, and no node may have more than two gates at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.container_walls import walls_hold
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, read_table, write_table
from benchmarks.parts import parser_of, wait_until

SITES = ("harbour", "oldtown", "airport")
CLIENTS, OF_A_SITE = 12, 4  # of docker/example.py
PARTS = len(SITES) * 2 + 3  # SuperNodes and their SuperExecs; SuperLink, its SuperExec, register
SHORT_ROUNDS, FAULT_ROUNDS, CUT_ROUNDS = 3, 8, 11
STATE_DISK = 256  # MB, of the site whose disk is filled
TABLE = ROOT / "docs" / "containers.csv"
CUT_OFF = 60.0  # seconds
MOST_GATES = 2  # of a node at one time
COMMAND_DEADLINE = 600.0  # of one command of the engine, however busy the machine
UP_DEADLINE, BUILD_DEADLINE, RUN_DEADLINE = 480.0, 1200.0, 900.0
# A deadline of so many times a round's usual seconds: short, so that rounds end while a node is cut
# off.
PATIENCE, SHORTEST_DEADLINE = 4.0, 30.0
CONFIG = """method = "fuels"
rounds = {rounds}
nodes.minimum = 3
nodes.start-deadline = 300.0
nodes.round-deadline = {deadline}
nodes.maximum-failed-share = 0.9
output.dir = "/runs"
output.name = "{name}"
output.pictures = false
"""


class Check(NamedTuple):
    """A statement that must hold, and whether it did."""

    name: str
    holds: bool
    detail: str
    seconds: float


class CannotTry(Exception):
    """This machine cannot run containers. The message says why."""


class Composed:
    """The project of docker-compose.yml, with keys and sites in `folder`.

    The state of the last site lies on a small disk, which a trial fills.
    """

    def __init__(
        self, folder: Path, image: str, command: Sequence[str], site_cpus: float = 0.0
    ) -> None:
        self.folder, self.image, self.site_cpus = folder, image, site_cpus
        self.project = f"fedproto-try-{os.getpid()}"
        disk = {"type": "tmpfs", "device": "tmpfs", "o": f"size={STATE_DISK}m,uid=10001,gid=10001"}
        changes: dict[str, Any] = {
            "volumes": {SITES[2]: {"driver": "local", "driver_opts": disk}},
            "services": {
                name: {"cpus": site_cpus} for site in SITES for name in (site, f"{site}-clientapp")
            },
        }
        (folder / "changes.json").write_text(json.dumps(changes), encoding="utf-8")  # is YAML
        files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(folder / "changes.json")]
        self._command = [*command, *files]
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "FEDPROTO_IMAGE": image,
            "FEDPROTO_KEYS": str(folder / "federation" / "keys"),
            "FEDPROTO_NODES": str(folder / "federation" / "nodes"),
            "FEDPROTO_SITES": str(folder / "federation" / "sites"),
            "FEDPROTO_CONFIGS": str(folder / "configs"),
        }

    def __call__(
        self, *arguments: str, seconds: float = COMMAND_DEADLINE, must: bool = True
    ) -> str:
        """Run a compose command and return its output."""
        command = [*self._command, *arguments]
        return _run(command, self._environment, seconds, must=must).stdout

    def submit(self, name: str, rounds: int, deadline: float) -> subprocess.Popen[str]:
        """Submit a run and follow it. The process ends when the run does."""
        config = CONFIG.format(rounds=rounds, name=name, deadline=deadline)
        (self.folder / "configs" / f"{name}.toml").write_text(config, encoding="utf-8")
        command = ["run", "--rm", "-T", "cli", "fedproto", "run", f"/configs/{name}.toml"]
        return subprocess.Popen(
            [*self._command, *command, "--superlink", "federation"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """Return the rounds of a run so far."""
        return [json.loads(line) for line in self.read(name, "rounds.jsonl").splitlines()]

    def summary(self, name: str) -> dict[str, Any]:
        """Return the summary of a run, {} if it has not ended well."""
        summary: dict[str, Any] = json.loads(self.read(name, "summary.json") or "{}")
        return summary

    def read(self, name: str, file: str) -> str:
        # Root there, without capabilities, cannot read the files of the user who runs this.
        user = ("-T", "--user", "10001:10001")
        return self("exec", *user, "serverapp", "cat", f"/runs/{name}/{file}", must=False)

    def states(self) -> dict[str, str]:
        """Return each container's health, else its status, from the engine."""
        ids = self("ps", "-q").split()
        ask = "{{.Name}} {{if .State.Health}}{{.State.Health.Status}}{{else}}"
        ask += "{{.State.Status}}:{{.State.ExitCode}}{{end}}"
        lines = docker("inspect", "--format", ask, *ids).splitlines()
        return dict(line.lstrip("/").split() for line in lines)

    def most_gates(self, process: subprocess.Popen[str]) -> int:
        """Return the most gates that a node had at one time while this process ran."""
        nodes = [self("ps", "-q", f"{site}-clientapp").strip() for site in SITES]
        largest = 0
        while process.poll() is None:
            largest = max(largest, *map(_gates, nodes))
            time.sleep(2)
        return largest


def _gates(container: str) -> int:
    """Count the gates of a container. Each gate has forks with the same command line."""
    parents = {}
    for line in docker("top", container, "-eo", "pid,ppid,args").splitlines():
        pid, parent, arguments = line.split(maxsplit=2)
        if "ops.gate.start client_gate" in arguments:
            parents[pid] = parent
    return sum(parent not in parents for parent in parents.values())


def check_slow_sites(composed: Composed) -> Iterator[Check]:
    """Train where each site's containers have a share of a core."""
    share = f"{composed.site_cpus:g} cores for a site's containers"
    trained = f"FUELS trains {SHORT_ROUNDS} rounds; at most {MOST_GATES} gates a node"
    for name, action in (
        ("keys and sites made", _prepare),
        ("all healthy, keys registered", _up),
        (trained, partial(_train, count_gates=True)),
    ):
        yield _timed(f"{share}: {name}", partial(action, composed))


def check_all(composed: Composed, *, short: bool) -> Iterator[Check]:
    """Go through the life of a federation."""
    life: dict[str, Callable[[Composed], tuple[bool, str]]] = {
        "keys and three sites made, in the image": _prepare,
        "docker-compose up: all healthy, keys registered": _up,
        "registering again changes nothing": _register_again,
        "a run's code has data, but no key, secret, log, way out or write": _walls,
        f"FUELS trains {SHORT_ROUNDS} rounds to the end": _train,
    }
    faults: dict[str, Callable[[Composed], tuple[bool, str]]] = {
        "a node and its SuperExec restarted in training: back in a later round": _restart,
        "a node killed in training, restarted by the engine: back in a later round": _kill,
        f"a node cut off for {CUT_OFF:.0f} s or more: the others go on, then it is back": _cut,
        "a site's disk is full: refused with that reason; back when there is room": _fill,
    }
    for name, action in (life if short else life | faults).items():
        yield _timed(name, partial(action, composed))


def _walls(composed: Composed) -> tuple[bool, str]:
    return walls_hold(composed, SITES[0])


def _prepare(composed: Composed) -> tuple[bool, str]:
    federation = composed.folder / "federation"
    (composed.folder / "configs").mkdir()
    federation.mkdir()
    federation.chmod(0o777)  # the image's user, whose number is not ours, writes into it
    mounts = ["-v", f"{federation}:/federation", "-v", f"{ROOT / 'docker'}:/docker:ro"]
    inside = ["run", "--rm", "--network", "none", *mounts, composed.image]
    nodes = [word for site in SITES for word in ("--node", site)]
    docker(*inside, "fedproto", "keys", "/federation/keys", "--host", "superlink", *nodes)
    copy = "mkdir /federation/nodes && cp /federation/keys/nodes/*.pub /federation/nodes"
    docker(*inside, "sh", "-c", copy)
    docker(*inside, "python3", "/docker/example.py", "/federation/sites")
    sites = sorted(path.name for path in (federation / "sites").iterdir())
    return sites == sorted(SITES), ", ".join(sites)


def _up(composed: Composed) -> tuple[bool, str]:
    composed("up", "-d")
    states: dict[str, str] = {}

    def ready() -> bool:
        nonlocal states
        states = composed.states()
        well = sum(state in ("healthy", "exited:0") for state in states.values())
        return well == PARTS

    done = _until(ready, UP_DEADLINE)
    unwell = [f"{name}: {state}" for name, state in states.items() if state != "healthy"]
    return done, f"{PARTS} containers" if done else ", ".join(unwell)


def _register_again(composed: Composed) -> tuple[bool, str]:
    output = composed("run", "--rm", "-T", "register")
    lines = output.splitlines()
    return sorted(lines) == sorted(f"{site}: is registered" for site in SITES), "; ".join(lines)


def _train(composed: Composed, *, count_gates: bool = False) -> tuple[bool, str]:
    process = composed.submit("short", SHORT_ROUNDS, 300.0)
    gates = composed.most_gates(process) if count_gates else 0
    output, ended = _end_of(process)
    summary = composed.summary("short")
    if not (ended and summary):
        return False, output[-300:]
    lines = composed.rounds("short")
    seconds = [line["seconds"]["total"] for line in lines]
    complete = [line["clients"] for line in lines] == [CLIENTS] * SHORT_ROUNDS
    shown = ", ".join(f"{duration:.1f}" for duration in seconds)
    detail = f"{summary['clients']} clients, mse {summary['mse']:.4f}; rounds of {shown} s"
    if count_gates:
        detail += f"; {gates} gates at most"
    return complete and gates <= MOST_GATES, detail


def _restart(composed: Composed) -> tuple[bool, str]:
    site = SITES[0]

    def fault() -> None:
        composed("restart", "-t", "1", site)
        _until(lambda: len(composed.rounds("restarted")) >= 4, RUN_DEADLINE)
        composed("restart", "-t", "1", f"{site}-clientapp")

    return _with_fault(composed, "restarted", FAULT_ROUNDS, 120.0, fault)


def _kill(composed: Composed) -> tuple[bool, str]:
    node = composed("ps", "-q", SITES[0]).strip()
    process = docker("inspect", "--format", "{{.State.Pid}}", node).strip()
    # From outside, as a crash: what `docker kill` ends, the engine does not restart.
    outside = ["run", "--rm", "--pid", "host", "--network", "none", "--user", "0:0", composed.image]

    def fault() -> None:
        docker(*outside, "python3", "-c", f"import os; os.kill({process}, 9)")

    good, detail = _with_fault(composed, "killed", FAULT_ROUNDS, 120.0, fault)
    restarts = docker("inspect", "--format", "{{.RestartCount}}", node).strip()
    return good and int(restarts) > 0, f"{detail}, restarts {restarts}"


def _fill(composed: Composed) -> tuple[bool, str]:
    state = ["exec", "-T", "--user", "10001:10001", f"{SITES[2]}-clientapp"]
    reasons: set[str] = set()

    def refused() -> bool:
        lines = composed.rounds("full")
        reasons.update(refusal["reason"] for line in lines for refusal in line["refused"])
        return any(line["clients"] == CLIENTS - OF_A_SITE for line in lines)

    def fault() -> None:
        composed(*state, "dd", "if=/dev/zero", "of=/state/ballast", "bs=64k", must=False)
        _until(refused, RUN_DEADLINE / 3)
        composed(*state, "rm", "/state/ballast")

    good, detail = _with_fault(composed, "full", CUT_ROUNDS, 120.0, fault)
    return good and refused(), f"{detail}; {'; '.join(sorted(reasons))}"


def _cut(composed: Composed) -> tuple[bool, str]:
    usual = [line["seconds"]["total"] for line in composed.rounds("restarted")]
    deadline = max(SHORTEST_DEADLINE, PATIENCE * statistics.median(usual))
    network, node = f"{composed.project}_fleet", composed("ps", "-q", SITES[1]).strip()

    def went_on() -> bool:
        return any(line["clients"] == CLIENTS - OF_A_SITE for line in composed.rounds("cut"))

    def fault() -> None:
        docker("network", "disconnect", network, node)
        time.sleep(CUT_OFF)
        _until(went_on, RUN_DEADLINE / 3)
        docker("network", "connect", network, node)

    good, detail = _with_fault(composed, "cut", CUT_ROUNDS, deadline, fault)
    return good and went_on(), detail


def _with_fault(
    composed: Composed, name: str, rounds: int, deadline: float, fault: Callable[[], None]
) -> tuple[bool, str]:
    """Train, and do harm after the second round: all rounds must end, the last with all clients."""
    process = composed.submit(name, rounds, deadline)
    if not _until(lambda: len(composed.rounds(name)) >= 2, RUN_DEADLINE / 3):
        process.terminate()
        return False, _end_of(process)[0][-300:]
    fault()
    output, ended = _end_of(process)
    lines = composed.rounds(name)
    trained = [line["clients"] for line in lines]
    good = ended and len(lines) == rounds and trained[-1] == CLIENTS
    seconds = [round(line["seconds"]["total"]) for line in lines]
    detail = f"clients by round {trained}, seconds {seconds}"
    return good, detail if good else f"{detail}: {output[-300:]}"


def _end_of(process: subprocess.Popen[str]) -> tuple[str, bool]:
    """Return the process's output, and whether it ended well and in time."""
    try:
        output, _ = process.communicate(timeout=RUN_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"not done within {RUN_DEADLINE:.0f} s", False
    return output, process.returncode == 0


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    try:
        wait_until(holds, "it", seconds, interval=1.0)
    except TimeoutError:
        return False
    return True


def _timed(name: str, action: Callable[[], tuple[bool, str]]) -> Check:
    start = time.monotonic()
    try:
        holds, detail = action()
    except RuntimeError as error:
        holds, detail = False, str(error)
    return Check(name, holds, detail, time.monotonic() - start)


def docker(*arguments: str, seconds: float = COMMAND_DEADLINE) -> str:
    """Return the output of a command of the engine. Raises RuntimeError if it fails."""
    return _run(["docker", *arguments], None, seconds).stdout


def _run(
    command: Sequence[str], environment: dict[str, str] | None, seconds: float, *, must: bool = True
) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)}: not done within {seconds:.0f} s") from None
    if must and done.returncode:
        message = (done.stderr or done.stdout).strip()[-1000:]
        raise RuntimeError(f"{' '.join(command)}: code {done.returncode}: {message}")
    return done


def find_compose() -> list[str]:
    """Return this machine's compose command. Raises `CannotTry` without it or without an engine."""
    if shutil.which("docker") is None:
        raise CannotTry("there is no docker command here")
    if _run(["docker", "info"], None, 60, must=False).returncode:
        raise CannotTry("no Docker engine answers here (docker info)")
    for command in (["docker", "compose"], ["docker-compose"]):
        program = shutil.which(command[0])
        if program and not _run([*command, "version"], None, 60, must=False).returncode:
            return command
    raise CannotTry("there is no docker-compose here")


def build(base_image: str, tag: str) -> Check:
    """Build the image. Raises `CannotTry` if its base is not available."""
    if (
        _run(["docker", "image", "inspect", base_image], None, 60, must=False).returncode
        and _run(["docker", "pull", base_image], None, BUILD_DEADLINE, must=False).returncode
    ):
        raise CannotTry(f"the base image {base_image} is not here and cannot be pulled")
    arguments = ["--build-arg", f"BASE_IMAGE={base_image}"]
    if pip := os.environ.get("PIP_ARGS"):
        arguments += ["--build-arg", f"PIP_ARGS={pip}"]

    def action() -> tuple[bool, str]:
        # The host's network, as there are engines without one of their own.
        command = ["build", "--network", "host", "--tag", tag, *arguments, "."]
        docker(*command, seconds=BUILD_DEADLINE)
        size = int(docker("image", "inspect", "--format", "{{.Size}}", tag))
        return True, f"{size / 1e6:.0f} MB on {base_image}"

    return _timed("docker build", action)


@contextmanager
def cleaned_up(composed: Composed) -> Iterator[None]:
    """Remove the project's containers, networks and volumes, and the files of the image's user."""
    try:
        yield
    finally:
        composed("--profile", "cli", "down", "--volumes", "--remove-orphans", must=False)
        inside = ["run", "--rm", "--network", "none", "--user", "0:0"]
        mount = ["-v", f"{composed.folder}:/made", composed.image]
        docker(*inside, *mount, "rm", "-rf", "/made/federation", "/made/configs")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--short", action="store_true", help="no faults")
    parser.add_argument("--page", action="store_true", help="write the rows to the page")
    parser.add_argument("--site-cpus", type=float, metavar="CORES", help="of a site's containers")
    parser.add_argument("--base-image", default=os.environ.get("BASE_IMAGE", "python:3.11-slim"))
    parser.add_argument("--image", default="fedproto-app", help="the name of what is built")
    arguments = parser.parse_args()
    checks = []
    try:
        command = find_compose()
        checks.append(build(arguments.base_image, arguments.image))
    except CannotTry as error:
        print(f"containers: skipped: {error}")
        return
    _tell(checks[0])
    if checks[0].holds:
        with tempfile.TemporaryDirectory(prefix="fedproto-") as folder:
            slow = arguments.site_cpus
            composed = Composed(Path(folder), arguments.image, command, slow or 0.0)
            check_life = check_slow_sites if slow else partial(check_all, short=arguments.short)
            with cleaned_up(composed):
                for check in check_life(composed):
                    checks.append(check)
                    _tell(check)
                    if not check.holds:
                        print(f"all logs: {_keep_logs(composed)}")
                        break
    print(machine_line())
    good = all(check.holds for check in checks)
    if arguments.page and good:
        enter(TABLE, checks)
    sys.exit(not good)


def enter(file: Path, checks: Sequence[Check]) -> None:
    """Enter the checks into the table, a CSV file, which keeps its other rows."""
    head = ("what must hold", "what happened", "seconds", "made")
    rows = {row[0]: row for row in read_table(file)[1:]}
    for check in checks:
        origin = f"{date.today()}, {machine_line()}"
        rows[check.name] = [check.name, check.detail, f"{check.seconds:.0f}", origin]
    write_table(file, [head, *rows.values()])


def _tell(check: Check) -> None:
    outcome = "ok    " if check.holds else "FAILED"
    print(f"{outcome} {check.seconds:4.0f} s  {check.name}: {check.detail}", flush=True)


def _keep_logs(composed: Composed) -> Path:
    file = Path(tempfile.gettempdir()) / f"{composed.project}.log"
    file.write_text(composed("logs", "--no-color", "--timestamps"), encoding="utf-8")
    return file


if __name__ == "__main__":
    main()
