"""``fedproto run --resume`` and ``--superlink``: what is submitted, shown and told at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.cli import flower_run
from fedproto_app.cli import run as run_module
from fedproto_app.core.run_lock import RunLock
from fedproto_app.ops.superlink import ConnectionLost, RunStatus
from fedproto_app.report.progress import NewRounds
from fedproto_app.server.checkpoint import Checkpoint, write_checkpoint
from tests.cli.conftest import Fake, FakeSuperLink, Fedproto
from tests.report.made_runs import make_run, round_record

ROUND = "event=round round={} asked=3 answered=2 refused=1 late=1 clients=2 seconds=30 loss=0.5"
REFUSED = 'event=refused node=south reason="no reply within 60 s"'
STOPPED = 'event=stopped reason="3 of 3 nodes gave no usable reply"'


class FakeNamedSuperLink:
    """A SuperLink whose log breaks off once before the run ends."""

    def __init__(self, name: str, folder: Path, logs: list[list[str]], end: str) -> None:
        self.name, self.log = name, folder / "flower.log"
        self._logs, self._end = logs, end
        self.submitted: list[Mapping[str, Any]] = []
        self.apps: list[str] = []  # the pyproject.toml of each
        self.followed = self.terminated = 0
        self.interrupted = False

    def submit(self, app: Path, run_config: Mapping[str, Any]) -> str:
        self.submitted.append(run_config)
        self.apps.append((app / "pyproject.toml").read_text())
        return "77"

    def await_answer(self, tell: object) -> None:
        pass

    def follow(self, run_id: str, log: Path) -> FakeNamedSuperLink:
        self.followed += 1
        log.write_text("".join(f"INFO :      {line}\n" for line in self._logs[self.followed - 1]))
        return self

    def poll(self) -> int | None:
        if self.interrupted:
            raise KeyboardInterrupt
        return 0

    def terminate(self) -> None:
        self.terminated += 1

    def wait(self) -> None: ...

    def status(self, run_id: str) -> RunStatus:
        if self.followed < len(self._logs):
            return RunStatus("running", "N/A")
        return RunStatus(f"finished:{self._end}", "it broke")


Deploy = Callable[..., FakeNamedSuperLink]


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch, work_folder: Path) -> Deploy:
    """Replace the named SuperLink by one with these logs and this end."""

    def replace(*logs: list[str], end: str = "completed") -> FakeNamedSuperLink:
        fake = FakeNamedSuperLink("lab", work_folder, list(logs) or [[]], end)
        monkeypatch.setattr(run_module, "NamedSuperLink", lambda name, folder: fake)
        monkeypatch.setattr(flower_run, "_LOOK_EVERY", 0.0)
        return fake

    return replace


def unfinished(folder: Path, nodes: int = 3, **changes: Any) -> Path:
    """A run that broke off after two rounds."""
    make_run(folder)
    (folder / "summary.json").unlink()
    settings = ['method = "fuels"', "seed = 7", f"nodes.minimum = {nodes}", *changes.values()]
    (folder / "settings.toml").write_text("\n".join(settings) + "\n")
    (folder / "rounds.jsonl").write_text("")
    write_checkpoint(folder / "checkpoint", Checkpoint(2, "token", nodes=nodes))
    return folder


def test_a_simulation_is_resumed_with_its_settings_and_nodes(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake: FakeSuperLink = flower("completed")
    folder = unfinished(work_folder / "elsewhere" / "mine")
    outcome = fedproto("run", "--resume", "elsewhere/mine")
    assert outcome.code == 0
    ((_, config, nodes, _, _),) = fake.submitted
    assert nodes == 3
    assert (config["seed"], config["method"]) == (7, "fuels")
    assert config["output"]["resume"] is True
    assert Path(config["output"]["dir"], config["output"]["name"]) == folder
    assert outcome.out.endswith(f"artefacts: {folder}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "nowhere"], "nowhere: holds no run to resume"),
        (["--resume", "done"], "done: this run is finished"),
        (["--resume", "mine", "--nodes", "2"], "--nodes 2: the run has 3 nodes"),
        (["--resume", "done", "--set", "rounds=1"], "rounds = 1: "),
        (["--resume", "mine", "--set", "rounds=39"], "rounds = 39: "),
        (["--resume", "held"], "held is being written by process "),
        (["--superlink", "lab", "--resume", "held"], "held is being written by process "),
        (
            ["--resume", "mine", "--set", "seed=8"],
            "--set seed=8: a run continues with",
        ),
        (["mine/settings.toml", "--resume", "mine"], "continues with the settings in its folder"),
        (["--superlink", "lab", "--nodes", "2"], "--nodes 2: only for simulated nodes"),
        (["--superlink", "lab", "--set", "rounds=0"], "rounds = 0: "),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(
    fedproto: Fedproto,
    deploy: Deploy,
    flower: Fake,
    work_folder: Path,
    arguments: list[str],
    message: str,
) -> None:
    fake, deployed = flower("completed"), deploy()
    unfinished(work_folder / "mine")
    make_run(work_folder / "done")
    (work_folder / "done" / "settings.toml").write_text("")
    with RunLock(unfinished(work_folder / "held")):
        outcome = fedproto("run", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert fake.submitted == deployed.submitted == []


def test_a_resumed_simulation_may_get_more_rounds_and_wait_longer(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    (unfinished(work_folder / "mine") / "summary.json").write_text(
        '{"rounds": 40, "stopped": "rounds"}'
    )
    changes = ["--set", "rounds=60", "--set", "nodes.start-deadline=9.0"]
    assert fedproto("run", "--resume", "mine", *changes).code == 0
    config = fake.submitted[0][1]
    assert (config["rounds"], config["nodes"]["start-deadline"]) == (60, 9.0)


def test_a_deployed_run_shows_rounds_and_warnings_once(
    fedproto: Fedproto, deploy: Deploy, work_folder: Path
) -> None:
    folder = work_folder / "server"
    log = [f"event=artefacts folder={folder}", "something of Flower's", ROUND.format(1), REFUSED]
    fake = deploy(log, [*log, ROUND.format(39)])
    outcome = fedproto("run", "--superlink", "lab", "--set", "data.source=wide-csv")
    assert outcome.code == 0
    assert fake.submitted[0]["data"]["source"] == "wide-csv"
    assert fake.submitted[0]["output"]["resume"] is False
    assert fake.submitted[0]["output"]["name"].startswith("fuels-")
    shown = outcome.err.splitlines()
    assert sum("round 1/40" in line for line in shown) == 1
    assert any(
        "round 39/40" in line and "answered 2" in line and "0:30 left" in line for line in shown
    )
    assert sum(REFUSED in line for line in shown) == 1
    assert "something of Flower's" not in outcome.err
    assert outcome.out == f"artefacts, on the server: {folder}\n"


def test_an_app_around_is_submitted_else_one_of_the_installed_package(
    fedproto: Fedproto,
    deploy: Deploy,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for folder, clientapp in (
        (work_folder, "toy_app.client:app"),
        (tmp_path, "fedproto_app.client_app:"),
    ):
        monkeypatch.chdir(folder)
        fake = deploy()
        assert fedproto("run", "--superlink", "lab").code == 0
        assert f'clientapp = "{clientapp}' in fake.apps[0]


def test_where_the_servers_folder_can_be_read_its_tables_are_printed(
    fedproto: Fedproto, deploy: Deploy, work_folder: Path
) -> None:
    folder = make_run(work_folder / "server")
    deploy([f"event=artefacts folder={folder}"])
    outcome = fedproto("run", "--superlink", "lab")
    assert "fuels on toy: 2 clients" in outcome.out


@pytest.mark.parametrize("reason", [STOPPED, ""])
def test_a_deployed_run_that_fails_says_why_and_how_to_go_on(
    fedproto: Fedproto, deploy: Deploy, reason: str
) -> None:
    deploy(["event=x", reason], end="failed")
    outcome = fedproto("run", "--superlink", "lab", "--set", "output.name=mine")
    assert outcome.code == 1
    if reason:
        assert "error: 3 of 3 nodes gave no usable reply" in outcome.err
    else:
        assert "error: the run ended as finished:failed: it broke" in outcome.err
    assert "--resume mine" in outcome.err


def test_who_stops_following_leaves_the_run_and_no_process(
    fedproto: Fedproto, deploy: Deploy
) -> None:
    fake = deploy()
    fake.interrupted = True
    outcome = fedproto("run", "--superlink", "lab", "--set", "output.name=mine")
    assert outcome.code == 130
    assert outcome.err.endswith(
        "stopped following; the run goes on; follow it: flwr log 77 lab --stream; "
        "end it: flwr stop 77 lab\n"
    )
    assert fake.terminated == fake.followed == 1


def test_who_stops_while_a_run_is_submitted_is_told_where_to_look(
    fedproto: Fedproto, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(deploy(), "submit", interrupt)
    outcome = fedproto("run", "--superlink", "lab")
    assert (outcome.code, outcome.err) == (
        130,
        "stopped; check whether the run was submitted: flwr list lab\n",
    )


def unreachable(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNamedSuperLink, times: int
) -> list[float]:
    """Return the pauses of a run whose SuperLink fails to answer so many times."""
    pauses: list[float] = []
    answer, failed = fake.status, 0
    clock = time.monotonic

    def status(run_id: str) -> RunStatus:
        nonlocal failed
        if failed < times:
            failed += 1
            raise ConnectionLost("flwr list failed: unavailable")
        return answer(run_id)

    monkeypatch.setattr(fake, "status", status)
    monkeypatch.setattr(flower_run.time, "sleep", pauses.append)
    monkeypatch.setattr(flower_run.time, "monotonic", lambda: clock() + sum(pauses))
    return pauses


def test_a_connection_that_comes_back_is_no_failure(
    fedproto: Fedproto, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = deploy([ROUND.format(1)], [ROUND.format(1), ROUND.format(2)])
    pauses = unreachable(monkeypatch, fake, times=7)
    outcome = fedproto("run", "--superlink", "lab")
    assert outcome.code == 0
    assert pauses[:7] == [1, 2, 4, 8, 16, 30, 30]
    lost = "lost the connection to the run, trying again: flwr list failed: unavailable"
    assert outcome.err.count(lost) == 1
    assert outcome.err.count("connected to the run again: running") == 1
    assert outcome.err.index("round 1/40") < outcome.err.index(lost)
    assert outcome.err.count("round 2/40") == 1


def test_who_loses_sight_of_a_run_is_not_told_that_it_failed(
    fedproto: Fedproto, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = unreachable(monkeypatch, deploy(), times=1000)
    outcome = fedproto("run", "--superlink", "lab", "--set", "output.name=mine")
    assert outcome.code == 3
    assert 560 < sum(pauses) <= 600
    assert outcome.err.endswith(
        "error: lost the connection to run 77, which may continue: flwr list failed: unavailable\n"
        "its status: flwr list lab; follow it: flwr log 77 lab --stream; "
        "end it: flwr stop 77 lab\n"
        "do not resume it before it has ended\n"
    )


@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_deployed_run_is_resumed_and_may_be_made_longer(
    fedproto: Fedproto, deploy: Deploy, work_folder: Path, can_be_read: bool
) -> None:
    """By its folder, whose settings are kept, or by its name on the server."""
    folder, fake = unfinished(work_folder / "server" / "mine"), deploy()
    resumed = folder if can_be_read else "mine"
    outcome = fedproto("run", "--superlink", "lab", "--resume", resumed, "--set", "rounds=60")
    assert outcome.code == 0
    (config,) = fake.submitted
    assert config["rounds"] == 60
    assert (config["output"]["name"], config["output"]["resume"]) == ("mine", True)
    if can_be_read:
        assert (config["seed"], config["output"]["dir"]) == (7, str(folder.parent))


def test_rounds_of_before_a_resume_are_not_shown_again(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"

    def write(*numbers: int) -> None:
        file.write_text("".join(json.dumps(round_record(number)) + "\n" for number in numbers))

    write(1, 2, 3)
    rounds = NewRounds(file)
    assert rounds.new() == []
    write(1, 2)  # the server goes back to the checkpoint of round 2
    assert rounds.new() == []
    write(1, 2, 3, 4)
    assert [record["round"] for record in rounds.new()] == [4]
