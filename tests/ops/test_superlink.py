"""The run's own SuperLink, with stand-ins for Flower's programs."""

from __future__ import annotations

import json
import socket
import sys
import time
import tomllib
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import flatten_dict, get_fab_config, get_fused_config_from_dir

from fedproto_app.core.errors import FederationError
from fedproto_app.core.methods import METHODS
from fedproto_app.ops import superlink
from fedproto_app.ops.superlink import (
    ConnectionLost,
    NamedSuperLink,
    RunStatus,
    SuperLink,
    free_port,
    tail,
    write_app,
)
from fedproto_app.settings import Settings, flat_settings, flower_config, settings_from

SUPERLINK = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

# Like SuperExec: a child that leaves the session. This one is deaf to SIGTERM, too.
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(99)"
child = subprocess.Popen(
    [sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE
)
child.stdout.readline()
open(os.environ["FLWR_HOME"] + "/pids", "w").write(f"{os.getpid()} {child.pid}")
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""

FLWR = """
import json, os, sys, tomllib
home = os.environ["FLWR_HOME"]
connection = tomllib.load(open(home + "/config.toml", "rb"))["superlink"]["own"]
if sys.argv[1] == "run":
    config = tomllib.load(open(sys.argv[sys.argv.index("--run-config") + 1], "rb"))
    if config["method"] == "refused":
        print(json.dumps({"success": False, "error-message": "bad\\n- app"}))
    elif config["method"] == "crash":
        sys.exit("\\x1b[91mthe server\\nis gone\\x1b[0m")
    else:
        json.dump([sys.argv[1:], config, connection], open(home + "/asked.json", "w"))
        print(json.dumps({"success": True, "run-id": "77"}))
elif sys.argv[1] == "list" and "77" not in sys.argv:
    print(json.dumps({"success": True, "runs": []}))
elif sys.argv[1] == "list" and os.path.exists(home + "/cut"):
    sys.exit("Error: the server is unavailable")
elif sys.argv[1] == "list":
    run = {"run-id": "77", "status": "finished:failed", "status-details": "it broke"}
    print(json.dumps({"success": True, "runs": [run]}))
else:
    print("log of", *sys.argv[2:])
"""


def write_program(file: Path, source: str) -> None:
    file.write_text(f"#!{sys.executable}\n{source}")
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    write_program(folder / "flower-superlink", SUPERLINK)
    write_program(folder / "flwr", FLWR)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "_GRACE", 0.3)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def started(home: Path) -> list[int]:
    return [int(pid) for pid in (home / "pids").read_text().split()]


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="the system has no /proc"
)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_no_proxy_is_asked_for_this_machine(
    home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(superlink, "_START_DEADLINE", 60.0)
    monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens on this port
    monkeypatch.setenv("no_proxy", "example.org")
    with SuperLink(home, programs=programs):
        pass
    environment = superlink._environment(home, programs, None)
    assert environment["no_proxy"] == "example.org,127.0.0.1,localhost"
    assert environment["NO_PROXY"].endswith("127.0.0.1,localhost")


@needs_proc
@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit, ValueError])
def test_all_that_was_started_ends_with_the_block_however_it_is_left(
    home: Path, programs: Path, error: type[BaseException] | None
) -> None:
    with pytest.raises(error) if error else nullcontext(), SuperLink(home, programs=programs):
        assert all(alive(pid) for pid in started(home))
        if error:
            raise error
    assert not any(alive(pid) for pid in started(home))


@needs_proc
def test_it_ends_when_interrupted_before_it_answers(
    home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: SuperLink, port: int) -> None:
        while not (home / "pids").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(SuperLink, "_wait_until_healthy", interrupt)
    with pytest.raises(KeyboardInterrupt), SuperLink(home, programs=programs):
        pass
    assert not any(alive(pid) for pid in started(home))


def test_a_run_is_handed_over_with_its_settings(home: Path, programs: Path) -> None:
    config = {"method": "fuels", "fuels": {"beta": 50.0}}
    with SuperLink(home, programs=programs) as link:
        assert link.simulate(Path("app folder"), config, nodes=3, cpus=2, gpus=0.5) == "77"
    arguments, received, connection = json.loads((home / "asked.json").read_text())
    assert arguments[:3] == ["run", "app folder", "own"]
    assert "num-supernodes=3 client-resources-num-cpus=2 client-resources-num-gpus=0.5" in arguments
    assert received == config
    assert connection["address"].startswith("127.0.0.1:")


def test_flowers_refusals_are_told_in_one_line(home: Path, programs: Path) -> None:
    with SuperLink(home, programs=programs) as link:
        with pytest.raises(FederationError, match=r"^flwr run failed: bad - app$"):
            link.simulate(Path("app"), {"method": "refused"}, 2, 1)
        with pytest.raises(FederationError, match=r"^flwr run failed: the server is gone$"):
            link.simulate(Path("app"), {"method": "crash"}, 2, 1)


def test_status_and_log_of_a_run(home: Path, programs: Path, tmp_path: Path) -> None:
    with SuperLink(home, programs=programs) as link:
        status = link.status("77")
        assert link.follow("77", tmp_path / "log").wait(timeout=20) == 0
    assert status == RunStatus("finished:failed", "it broke")
    assert status.finished
    assert not status.completed
    assert (tmp_path / "log").read_text() == "log of 77 own --stream\n"


def test_that_nobody_answers_says_nothing_of_the_run(home: Path, programs: Path) -> None:
    with SuperLink(home, programs=programs) as link:
        with pytest.raises(ConnectionLost, match="'own' knows no run 78"):
            link.status("78")
        (home / "cut").touch()
        with pytest.raises(ConnectionLost, match=r"flwr list failed: .* is unavailable"):
            link.status("77")
        (home / "cut").unlink()
        assert link.status("77").finished


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('port taken')", r"ended with code 1; its last lines:\nport taken"),
        ("import time; time.sleep(99)", "did not answer on port"),
        (None, "flower-superlink: No such file"),
    ],
)
def test_why_a_superlink_does_not_start_is_said(
    home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, message: str
) -> None:
    if program is None:
        (programs / "flower-superlink").unlink()
    else:
        write_program(programs / "flower-superlink", program)
    if program and "sleep" in program:
        monkeypatch.setattr(superlink, "_START_DEADLINE", 0.2)
    with pytest.raises(FederationError, match=message), SuperLink(home, programs=programs):
        pass


def test_the_environment_is_closed_to_the_outside(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("PYTHONPATH", "mine")
    environment = superlink._environment(home, Path("/venv/bin"), tmp_path)
    assert environment["FLWR_HOME"] == str(home)
    assert "RAY_ADDRESS" not in environment
    assert environment["PATH"] == "/venv/bin:/usr/bin"
    assert environment["PYTHONPATH"] == f"{tmp_path}:mine"
    assert superlink._environment(home, Path("/venv/bin"), None)["PYTHONPATH"] == "mine"


def test_ray_keeps_its_own_folder_where_ours_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    short, long = Path("/tmp/fedproto-12345678"), Path("/tmp") / ("x" * 60)
    assert superlink._environment(short, Path("/bin"), None)["RAY_TMPDIR"] == str(short)
    assert "RAY_TMPDIR" not in superlink._environment(long, Path("/bin"), None)


def test_the_tail_of_a_log_has_no_colours(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("one\n\x1b[91mtwo\x1b[0m\nthree\n")
    assert tail(log, lines=2) == "two\nthree"


PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_takes_it_and_finds_the_packages_apps(app: Path) -> None:
    config, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []
    assert get_fab_config(build_fab_from_disk(app)) == config
    assert sorted(path.name for path in app.iterdir()) == ["LICENSE", "pyproject.toml"]


def test_it_is_the_app_of_the_repository_without_its_code(app: Path) -> None:
    written = tomllib.loads((app / "pyproject.toml").read_text())
    assert written["tool"]["flwr"] == PYPROJECT["tool"]["flwr"]
    for key in ("name", "version", "license"):
        assert written["project"][key] == PYPROJECT["project"][key]
    (flower,) = written["project"]["dependencies"]
    assert flower in PYPROJECT["project"]["dependencies"]


def test_a_run_can_change_every_setting(app: Path) -> None:
    settings = flat_settings(Settings(method=next(iter(METHODS)), seed=3))
    config = flatten_dict(flower_config(settings_from(settings)))
    assert config.keys() == flatten_dict(PYPROJECT["tool"]["flwr"]["app"]["config"]).keys()
    fused = get_fused_config_from_dir(app, config)
    assert settings_from(fused) == settings_from(settings)
    assert settings_from(flower_config(settings_from(fused))).seed == 3


def test_a_run_waits_for_a_superlink_that_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr("fedproto_app.ops.superlink.time.sleep", lambda seconds: None)
    port, messages = free_port(), list[str]()
    config = f'[superlink.lab]\naddress = "127.0.0.1:{port}"\n'
    (tmp_path / "config.toml").write_text(config)
    named_link = NamedSuperLink("lab", tmp_path)
    with ExitStack() as listening:

        def begin_to_listen(text: str) -> None:
            messages.append(text)
            listening.enter_context(socket.create_server(("127.0.0.1", port)))

        named_link.await_answer(begin_to_listen)
        named_link.await_answer(begin_to_listen)  # now at once
    assert messages == [
        f"waiting up to 180 s for 127.0.0.1:{port}, the SuperLink 'lab': Connection refused"
    ]
    NamedSuperLink("unknown", tmp_path).await_answer(messages.append)  # Flower says what is wrong
    assert len(messages) == 1
