"""Run the commands of docs/deployment.md, as printed there, on a real engine.

    python -m benchmarks.guide [one] [many] [--base-image IMAGE]

A command to be run has a comment before it in the page: ``<!-- run: PLACE NAME -->``. PLACE is the
machine on which a reader types it: `one`, `server`, `site`. Each machine is a folder here, with
the files that the guide asks for (`one` has the repository), and a compose project of its own.
`one` is the first chapter. `many` are the others: a server and a site, a killed server and its
resumed run, a site that joins late, a server that is lost and restored from its backup, an upgrade
of the server and then of one site after the other, a site that gets a new key and one that leaves
for good.

Between the commands the script also does what a person or the network does (`Play`), and it
adapts the commands (`adapted`). Prints a row for each command. Exit code 0 if all succeed. Without
an engine it says so and ends with 0.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.containers import CannotTry, docker, find_compose
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT
from benchmarks.parts import parser_of, wait_until
from fedproto_app.core.version import __version__

GUIDE = ROOT / "docs" / "deployment.md"
PLACES = ("one", "server", "site")
LONGEST, READY = 1800.0, 900.0  # seconds: of one command; until containers are healthy
INTERNET = "guide-internet"
ROUNDS = 6
NEXT_VERSION = f"{__version__}.post1"
# Root there, without capabilities, cannot read the files of the user who runs this.
READER = ("--user", "10001:10001", "fedproto-server_serverapp_1")
_BLOCK = re.compile(r"<!-- run: (\S+) (\S+) -->\n```\n(.*?)```", re.DOTALL)
_FUNCTION = re.compile(r"^\w+\(\) \{.*\}$", re.MULTILINE)


class Block(NamedTuple):
    """A block of commands of the guide."""

    place: str
    name: str
    commands: str


def blocks(page: str) -> dict[tuple[str, str], Block]:
    """Return all marked blocks of a page, by place and name."""
    marked = [Block(*parts) for parts in _BLOCK.findall(page)]
    by_name = {(block.place, block.name): block for block in marked}
    assert len(by_name) == len(marked), "two blocks have one name"
    return by_name


class Machine:
    """A folder in place of a machine: its working folder, and its /etc and /srv."""

    def __init__(self, folder: Path, place: str, site: str = "harbour", base: str = "") -> None:
        self.folder, self.place, self.site, self._base = folder, place, site, base
        self._functions: list[str] = []
        folder.mkdir()
        everything = ["."] if place == "one" else ["docker", "configs", "docker-compose.yml"]
        listed = ["git", "ls-files", "-z", *everything]
        files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
        for file in filter(None, files.stdout.split("\0")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)

    def type(self, block: Block, seconds: float = LONGEST) -> str:
        """Run the block's commands here. Raises RuntimeError if a command fails."""
        process = self.begin(block)
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:  # also this script's end, which the session outlives
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"not done within {seconds:.0f} s") from None
            raise
        if process.returncode:
            raise RuntimeError(f"code {process.returncode}: {output[-2000:]}")
        return output

    def begin(self, block: Block) -> subprocess.Popen[str]:
        """Start the block's commands without waiting for them."""
        commands = self.adapted(block.commands)
        self._functions += _FUNCTION.findall(commands)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", "\n".join([*self._functions, commands])],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that a command that waits ends with what it started
        )

    def adapted(self, commands: str) -> str:
        """Return the commands adapted: no sudo, this machine's folders, no terminal, the engine's
        network."""
        for folder in ("/etc/fedproto", "/srv/traffic"):
            commands = re.sub(rf"(?<![\w/]){folder}(?=[/\s:])", f"{self.folder}{folder}", commands)
            # What containers mount has the name that it has in the guide.
            commands = commands.replace(f":{self.folder}{folder}", f":{folder}")
        commands = commands.replace("fedproto keys " + str(self.folder), "fedproto keys ")
        commands = commands.replace("sudo ", "").replace("run --rm cli", "run --rm -T cli")
        commands = commands.replace("harbour", self.site) if self.place == "site" else commands
        build = f"docker build --network host --build-arg BASE_IMAGE={self._base}"
        return commands.replace("docker build", build)

    def edit(self, file: str, *changes: tuple[str, str]) -> None:
        """Edit a file as the guide asks."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        for before, after in changes:
            assert before in text, f"{file} has no {before!r}"
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")

    def containers(self) -> dict[str, str]:
        """Return the health, else the status, of this machine's containers."""
        ask = '{{.Label "com.docker.compose.service"}} {{.Status}}'
        project = {"one": "one", "server": "fedproto-server"}.get(self.place, f"site-{self.site}")
        listed = docker(
            *("ps", "-a", "--filter", f"label=com.docker.compose.project={project}"),
            *("--format", ask),
        )
        return dict(line.split(" ", 1) for line in listed.splitlines())

    def await_health(self) -> None:
        """Wait until all running containers are healthy. Raises RuntimeError after the deadline."""

        def healthy() -> bool:
            states = self.containers().values()
            return bool(states) and all("(healthy)" in s or "(0)" in s for s in states)

        try:
            wait_until(healthy, "health", READY, interval=2)
        except TimeoutError:
            raise RuntimeError(f"not healthy: {self.containers() or 'no containers'}") from None


class Play:
    """The guide's commands, machine by machine, and what people do between them."""

    def __init__(self, folder: Path, base: str) -> None:
        self._folder, self._base = folder, base
        self._guide = blocks(GUIDE.read_text(encoding="utf-8"))
        self.failed = False

    def one_machine(self) -> None:
        """Play the chapter of one machine."""
        machine = Machine(self._folder / "one", "one", base=self._base)
        machine.edit("configs/federation.toml", *_run_of(2, sites=3))
        for name in ("image", "keys", "sites", "start"):
            self._type(machine, name)
        self._do("all containers become healthy", machine.await_health)
        for name in ("train", "look", "audit", "delete"):
            self._type(machine, name)

    def several_machines(self) -> None:
        """Play the chapters of several machines."""
        server = Machine(self._folder / "server", "server")
        sites = [Machine(self._folder / f"site-{n}", "site", n) for n in ("harbour", "oldtown")]
        harbour, oldtown = sites
        docker("network", "create", INTERNET)
        self._type(server, "keys")
        for site in sites:
            self._type(site, "keys")
            self._carry_keys(server, site)
        self._type(server, "settings")
        server.edit("etc/fedproto/server.env", ("/etc/fedproto", f"{server.folder}/etc/fedproto"))
        server.edit("etc/fedproto/configs/federation.toml", *_run_of(ROUNDS, sites=1))
        self._type(server, "start")
        self._do("the server becomes healthy", server.await_health)
        self._internet("fedproto-server_superlink_1", "fl.example.org")
        self._site(harbour)

        run = self._begin(server, "train")
        self._await_first_round()
        self._type(server, "late")
        self._site(oldtown)
        self._do("SIGKILL of SuperLink and ServerApp", lambda: self._kill(server, run))
        self._type(server, "resume")
        self._do("the resumed run has all rounds, the late site too", self._run_is_complete)
        self._type(server, "backup")
        self._do("the server is lost", lambda: remove_project("fedproto-server"))
        self._type(server, "restore")
        self._internet("fedproto-server_superlink_1", "fl.example.org")
        self._do("the restored server becomes healthy", server.await_health)
        self._do("it has the run", self._run_is_complete)
        self._do(f"an image of version {NEXT_VERSION}", self._next_image)
        self._type(harbour, "pause")
        self._upgrade(server)
        self._upgrade(harbour)
        mixed = {"harbour": NEXT_VERSION, "oldtown": __version__}
        self._do("an upgraded and an old site train", lambda: self._train_with(server, mixed))
        self._type(oldtown, "pause")
        self._upgrade(oldtown)
        all_new = dict.fromkeys(mixed, NEXT_VERSION)
        self._do("both upgraded sites train", lambda: self._train_with(server, all_new))

        self._type(server, "list")
        _, old = self._nodes(server)["harbour"]
        self._type(harbour, "newkey")
        self._carry_keys(server, harbour)
        self._type(server, "rotate")
        self._type(harbour, "rekey")
        self._internet("site-harbour_supernode_1")
        self._do("the site is online with its new key", lambda: self._rekeyed(server, old))
        self._type(server, "revoke")
        self._do("the site that left is gone", lambda: self._one_node_left(server))

    def _next_image(self) -> None:
        """Build the image of the code with the next version's number."""
        machine = Machine(self._folder / "next", "one", base=self._base)
        machine.edit(
            "pyproject.toml", (f'version = "{__version__}"', f'version = "{NEXT_VERSION}"')
        )
        image = self._guide[("one", "image")]
        renamed = image.commands.replace("--tag fedproto-app", f"--tag fedproto-app:{NEXT_VERSION}")
        machine.type(image._replace(commands=renamed))

    def _upgrade(self, machine: Machine) -> None:
        env = f"etc/fedproto/{machine.place}.env"
        machine.edit(env, ("IMAGE=fedproto-app", f"IMAGE=fedproto-app:{NEXT_VERSION}"))
        self._type(machine, "upgrade")
        if machine.place == "server":
            self._internet("fedproto-server_superlink_1", "fl.example.org")
        else:
            self._internet(f"site-{machine.site}_supernode_1")
        self._do(f"{machine.folder.name} is healthy after its upgrade", machine.await_health)

    def _train_with(self, server: Machine, versions: Mapping[str, str]) -> None:
        """Train a round with sites of these versions, and see that every site took part."""
        name = f"VERSIONS-{'-'.join(versions.values())}"
        for site, version in versions.items():
            command = ("exec", f"site-{site}_clientapp_1", "fedproto", "--version")
            answer = docker(*command).strip()
            assert answer == f"fedproto-app {version}", f"{site} has {answer}"
        train = self._guide[("server", "train")]
        changes = f"name={name} --set rounds=1 --set nodes.minimum={len(versions)}"
        server.type(train._replace(commands=train.commands.replace("name=RUN", changes)))
        clients = docker("exec", *READER, "cat", f"/runs/{name}/clients.csv")
        lacking = [site for site in versions if site not in clients]
        assert not lacking, f"no client of {lacking} in {clients}"

    def _nodes(self, server: Machine) -> dict[str, tuple[str, str]]:
        """Return each node's status and key, by name, as the guide's command shows them."""
        output = server.type(self._guide[("server", "list")])
        rows = [line.split() for line in output.splitlines() if "SHA256:" in line]
        return {
            row[0]: (row[1], next(cell for cell in row if cell[:7] == "SHA256:")) for row in rows
        }

    def _rekeyed(self, server: Machine, old: str) -> None:
        wait_until(
            lambda: self._nodes(server)["harbour"][0] == "online",
            "harbour is online",
            READY,
            interval=5,
        )
        assert self._nodes(server)["harbour"][1] != old, "harbour has its old key"

    def _one_node_left(self, server: Machine) -> None:
        names = list(self._nodes(server))
        assert names == ["harbour"], f"known are {names}"

    def _site(self, site: Machine) -> None:
        self._type(site, "settings")
        etc = site.folder / "etc/fedproto"
        site.edit("etc/fedproto/site.toml", ('name = "harbour"', f'name = "{site.site}"'))
        site.edit(
            "etc/fedproto/site.env",
            ("COMPOSE_PROJECT_NAME=fedproto-site", f"COMPOSE_PROJECT_NAME=site-{site.site}"),
            ("/etc/fedproto", str(etc)),
            ("nodes/harbour", f"nodes/{site.site}"),
            ("/srv/traffic", f"{site.folder}/srv/traffic"),
        )
        self._give_data(site)
        for name in ("check", "start"):
            self._type(site, name)
        self._internet(f"site-{site.site}_supernode_1")
        self._do(f"the site {site.site} becomes healthy", site.await_health)

    def _carry_keys(self, server: Machine, site: Machine) -> None:
        """Copy a site's public key to the server, and the CA's certificate to the site."""
        public = f"{site.site}.pub"
        shutil.copy(site.folder / "etc/fedproto/keys/nodes" / public, server.folder / public)
        shutil.copy(server.folder / "etc/fedproto/keys/ca.crt", site.folder / "etc/fedproto/ca.crt")

    def _give_data(self, site: Machine) -> None:
        """Give a site the example's data."""
        inside = f"{site.folder}:/made"
        docker(
            *("run", "--rm", "--network", "none", "--user", "0:0", "-v", inside),
            *("-v", f"{ROOT / 'docker'}:/docker:ro", "fedproto-app"),
            *("python3", "/docker/example.py", "/made/example"),
        )
        (site.folder / "srv").mkdir()
        shutil.copytree(site.folder / "example" / site.site / "data", site.folder / "srv/traffic")

    def _internet(self, container: str, name: str = "") -> None:
        """Connect the containers of all machines to a network with a name service."""
        alias = ["--alias", name] if name else []
        networks = docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container)
        if f'"{INTERNET}"' not in networks:  # a container that was not made anew is in it
            docker("network", "connect", *alias, INTERNET, container)

    def _await_first_round(self) -> None:
        title = "round 1 is done"
        self._do(title, partial(wait_until, self._rounds, title, LONGEST, interval=3))

    def _rounds(self) -> int:
        file = "/runs/RUN/rounds.jsonl"
        command = ["docker", "exec", *READER, "wc", "-l", file]
        output = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        return int(output.split()[0]) if output else 0

    def _kill(self, server: Machine, run: subprocess.Popen[str]) -> None:
        """Kill the server as if its machine lost power, and start it again."""
        parts = [f"fedproto-server_{part}_1" for part in ("superlink", "serverapp")]
        docker("kill", *parts)
        os.killpg(run.pid, signal.SIGTERM)
        run.communicate(timeout=120)
        docker("start", *parts)
        server.await_health()

    def _run_is_complete(self) -> None:
        command = "cat /runs/RUN/rounds.jsonl /runs/RUN/clients.csv"
        output = docker("exec", *READER, "sh", "-c", command)
        numbers = [int(number) for number in re.findall(r'"round": ?(\d+)', output)]
        assert numbers == list(range(1, len(numbers) + 1)), f"rounds {numbers}"
        assert "oldtown" in output, "the late site is in no row"

    def _type(self, machine: Machine, name: str) -> None:
        block = self._guide[(machine.place, name)]
        first = block.commands.strip().splitlines()[-1][:60]
        self._do(f"{machine.folder.name}: {name}: {first}", lambda: machine.type(block))

    def _begin(self, machine: Machine, name: str) -> subprocess.Popen[str]:
        print(f"begun           {machine.folder.name}: {name}", flush=True)
        return machine.begin(self._guide[(machine.place, name)])

    def _do(self, step: str, action: Callable[[], object]) -> None:
        start = time.monotonic()
        try:
            action()
        except (RuntimeError, AssertionError, TimeoutError, subprocess.SubprocessError) as error:
            print(f"FAILED {time.monotonic() - start:4.0f} s  {step}: {error}", flush=True)
            raise SystemExit(1) from None
        print(f"ok     {time.monotonic() - start:4.0f} s  {step}", flush=True)


def _run_of(rounds: int, sites: int) -> list[tuple[str, str]]:
    """Changes of configs/federation.toml: so many rounds and sites."""
    return [("rounds = 10", f"rounds = {rounds}"), ("minimum = 3 ", f"minimum = {sites} ")]


def remove_project(project: str) -> None:
    """Remove the containers, networks and volumes of a compose project."""
    label = ("--filter", f"label=com.docker.compose.project={project}")
    if containers := docker("ps", "-aq", *label).split():
        docker("rm", "-f", *containers)
    if networks := docker("network", "ls", "-q", *label).split():
        docker("network", "rm", *networks)
    volumes = docker("volume", "ls", "-q").split()  # those that were restored have no label
    if volumes := [name for name in volumes if name.startswith(f"{project}_")]:
        docker("volume", "rm", *volumes)


@contextmanager
def cleaned_up(folder: Path) -> Iterator[None]:
    """Remove what the guide made: containers, volumes, networks, and files of the image's user."""
    try:
        yield
    finally:
        for project in ("one", "fedproto-server", "site-harbour", "site-oldtown"):
            remove_project(project)
        subprocess.run(["docker", "network", "rm", INTERNET], capture_output=True)
        inside = ["run", "--rm", "--network", "none", "--user", "0:0", "-v", f"{folder}:/made"]
        docker(*inside, "fedproto-app", "sh", "-c", "rm -rf /made/*")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("chapters", nargs="*", default=["one", "many"], metavar="one|many")
    parser.add_argument("--base-image", default=os.environ.get("BASE_IMAGE", "python:3.11-slim"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `cleaned_up` cleans up
    try:
        find_compose()
    except CannotTry as error:
        print(f"guide: skipped: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="fedproto-guide-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        with cleaned_up(folder):
            play = Play(folder, arguments.base_image)
            for chapter in arguments.chapters:
                {"one": play.one_machine, "many": play.several_machines}[chapter]()
    print(machine_line())


if __name__ == "__main__":
    main()
