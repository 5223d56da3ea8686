"""``fedproto run``: what is settled before Flower starts, and what is made of its end."""

from __future__ import annotations

import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedproto_app.cli import flower_run
from fedproto_app.experiments import run_settings
from fedproto_app.settings import Settings, settings_from
from tests.cli.conftest import Fake, Fedproto

IMAGES = [f"--set={change}" for change in ("task=classification", "method=gldp", "keep=last")]
NOTEBOOK_MODEL = ["--set=method=fedavg", "--set=model.module=__main__:Net"]
DIGITS = [*IMAGES, "--set=data.source=digits"]
DRAWN_DIGITS = [
    "--set=task=sequence-classification",
    "--set=method=fed-react",
    "--set=data.source=synthetic-air-writing",
    "--set=data.synthetic.sequences=200",
]


def test_a_completed_run_ends_with_its_tables_and_folder(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    outcome = fedproto("run", "--set", "output.name=first")
    assert outcome.code == 0
    assert "fuels on toy: 2 clients" in outcome.out
    assert "best and worst clients" in outcome.out
    assert outcome.out.endswith(f"artefacts: {work_folder / 'runs' / 'first'}\n")
    assert "round 3/40" in outcome.err
    assert (work_folder / "runs" / "first" / "flower.log").read_text() == "first line\nlast line\n"
    assert fake.streams == 2  # a broken stream is taken up again
    assert fake.closed


def test_quiet_prints_the_folder_only(fedproto: Fedproto, flower: Fake, work_folder: Path) -> None:
    flower("completed")
    outcome = fedproto("run", "--quiet", "--set", "output.name=first")
    assert (outcome.out, outcome.err) == (f"{work_folder / 'runs' / 'first'}\n", "")


def test_verbose_shows_the_log(fedproto: Fedproto, flower: Fake, work_folder: Path) -> None:
    flower("completed")
    assert "last line\n" in fedproto("run", "--verbose").err


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("failed", "first line\nlast line\nerror: the run ended as finished:failed: it broke\n"),
        ("stopped", "error: node 1 never came\n"),  # the server's reason, without the log
        ("dies", "error: flower-superlink ended with code 9\n"),
    ],
)
def test_a_run_that_fails_says_why_and_keeps_its_log(
    fedproto: Fedproto, flower: Fake, work_folder: Path, end: str, message: str
) -> None:
    fake = flower(end)
    outcome = fedproto("run", "--set", "output.name=first")
    log = work_folder / "runs" / "first" / "flower.log"
    assert outcome.code == 1
    assert outcome.err.endswith(message if end == "dies" else f"{message}full log: {log}\n")
    assert ("last line" in outcome.err) == (end == "failed")
    assert log.exists()
    assert fake.closed


def test_settings_come_from_app_then_file_then_command_line(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    project = work_folder.parent / "pyproject.toml"
    text = project.read_text().replace("rounds = 40", "rounds = 9")
    project.write_text(text.replace("patience = 0", "patience = 3"))
    (work_folder / "x.toml").write_text(
        'rounds = 7\nseed = 5\n[fuels]\nbeta = 30\nthreshold="absolute"\n'
    )
    outcome = fedproto(
        "run", "x.toml", "--set", "seed=6", "--set", "fuels.beta = 0.5", "--nodes", 3
    )
    assert outcome.code == 0
    app, config, nodes, cpus, gpus = fake.submitted[0]
    assert (app, nodes, cpus, gpus) == (work_folder.parent, 3, 1, 0.0)
    assert (config["patience"], config["rounds"], config["seed"]) == (3, 7, 6)
    assert config["local-epochs"] == 1
    text = tomllib.loads(config["method-settings"])
    assert text | {"beta": 0.5, "threshold": "absolute"} == text
    assert config["nodes"]["minimum"] == 3  # the app's 1 is only the default


def test_paths_become_absolute_and_the_run_gets_a_name(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    rows = "\n".join(f"{i % 24},{i % 7}" for i in range(600))
    (work_folder / "my data.csv").write_text(f"a,b\n{rows}\n")
    outcome = fedproto(
        "run",
        *("--set", "data.source=wide-csv", "--set", "data.path=my data.csv", "--set", "seed=4"),
    )
    assert outcome.code == 0, outcome.err
    config = fake.submitted[0][1]
    assert config["data"]["path"] == str(work_folder / "my data.csv")
    assert config["output"]["dir"] == str(work_folder / "runs")
    name = config["output"]["name"]
    assert name.startswith("fuels-my-data-s4-20")
    assert len(name) == len("fuels-my-data-s4-20260101-000000")


def test_a_method_of_the_current_folder_is_found_and_its_table_travels_as_text(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    (work_folder / "method_of_mine.py").write_text(
        "from fedproto_app.core.method import Method\n"
        "from fedproto_app.core.methods import METHODS\n"
        "from fedproto_app.settings import Section, setting\n"
        "class Mine(Section):\n"
        "    rate: float = setting(0.5, '')\n"
        "METHOD = Method('mine', METHODS['solo'].strategy, METHODS['solo'].learner, Mine)\n"
    )
    method = ("--set", "method=method_of_mine:METHOD")
    outcome = fedproto("run", *method, "--set", "mine.rate=0.25")
    assert outcome.code == 0, outcome.err
    config = fake.submitted[0][1]
    assert config["method-settings"].startswith("rate = 0.25\n")
    assert config["output"]["name"].startswith("mine-synthetic-traffic-s0-")
    assert fake.import_paths == [work_folder]
    outcome = fedproto("run", *method, "--set", "mine.rat=0.25")
    assert outcome.code == 2
    assert "error: mine.rat: unknown setting; did you mean mine.rate?" in outcome.err


def test_the_path_of_an_encoder_becomes_absolute(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("failed")  # the artefacts that it leaves else are a forecasting run's
    encoder = work_folder / "runs" / "before" / "model" / "global.safetensors"
    encoder.parent.mkdir(parents=True)
    encoder.touch()
    for path, expected in (("runs/before", str(work_folder / "runs" / "before")), ("", "")):
        assert fedproto("run", *DRAWN_DIGITS, "--set", f"encoder.path={path}").code == 1
        text = tomllib.loads(fake.submitted[-1][1]["method-settings"])
        assert text["encoder"]["path"] == expected


def test_methods_without_an_encoder_and_clusters_need_neither(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("failed")
    unused = ["--set=method=fedavg", "--set=encoder.path=before", "--set=fed-react.clusters=99"]
    assert fedproto("run", *DRAWN_DIGITS, *unused).code == 1
    assert len(fake.submitted) == 1


def test_images_that_can_be_dealt_are_submitted(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("failed")  # the artefacts that it leaves else are a forecasting run's
    assert fedproto("run", *DIGITS, "--set", "data.partition.clients=4").code == 1
    assert fake.submitted[0][1]["data"]["partition"]["clients"] == 4


def test_runs_that_start_at_once_never_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_settings, "default_run_name", lambda settings: "stamp")
    with ThreadPoolExecutor(16) as threads:
        names = list(
            threads.map(lambda _: run_settings._claimed_name(Settings(), tmp_path), range(16))
        )
    assert set(names) == {"stamp", *(f"stamp-{number}" for number in range(2, 17))}


def test_a_run_that_never_began_gives_its_name_back(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    flower("completed")
    command = ["run", "--set", "output.name=first"]
    assert fedproto(*command, "--set", "data.max-steps=5").code == 2
    assert fedproto(*command).code == 0


def test_where_no_folder_can_be_made_is_told(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    (work_folder / "file").write_text("")
    outcome = fedproto("run", "--set", "output.dir=file", "--set", "output.name=first")
    assert outcome.code == 2
    assert f"error: output.dir: {work_folder / 'file' / 'first'}: Not a directory" in outcome.err


def test_a_folder_that_exists_is_never_written_over(
    fedproto: Fedproto, flower: Fake, work_folder: Path
) -> None:
    fake = flower("completed")
    (work_folder / "runs" / "mine").mkdir(parents=True)
    outcome = fedproto("run", "--set", "output.name=mine")
    assert outcome.code == 2
    assert "error: output.name = 'mine'" in outcome.err
    assert fake.submitted == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "fuels.bta=1"],
            "fuels.bta: unknown setting; did you mean fuels.beta? ",
        ),
        (["--set", "fuels.beta=-1"], "fuels.beta = -1: "),
        (["--set", "rounds=many"], "rounds = 'many': "),
        (["--set", "rounds"], "--set rounds: expected KEY=VALUE"),
        (["--set", "=3"], "--set =3: expected KEY=VALUE"),
        (["--set", "nodes.minimum=5"], "nodes.minimum = 5: more than the 2 of --nodes"),
        (["--set", "nodes.names=a"], "nodes.names = 'a': only for real nodes, not for a"),
        (["--cpus-per-node", "9999"], "--cpus-per-node 9999: this machine has "),
        (NOTEBOOK_MODEL, "model.module = '__main__:Net': other processes cannot import "),
        (
            [*NOTEBOOK_MODEL, "--superlink", "far"],
            "model.module = '__main__:Net': other processes cannot import ",
        ),
        (["missing.toml"], "missing.toml: No such file"),
        (["broken.toml"], "broken.toml: "),
        (["--app", "nowhere"], "nowhere/pyproject.toml: No such file"),
        (["--app", "plain"], "plain/pyproject.toml: has no table [tool.flwr.app]"),
        (
            ["--set", "data.source=wide-csv", "--set", "data.path=missing.csv"],
            "missing.csv: no such file",
        ),
        (["--set", "data.max-steps=5"], "none of 24 clients can take part; "),
        (
            ["--set", "nodes.maximum-clients=5"],
            "nodes.maximum-clients = 5: the data have 24 clients, so allow that many: "
            "--set nodes.maximum-clients=24",
        ),
        (["--set", "data.source=digits"], "'digits' holds images; set task = 'classification'"),
        (IMAGES, "'synthetic-traffic' holds series; set task = 'forecasting', or data.source to "),
        (
            [*IMAGES, "--set", "data.source=class-folders", "--set", "data.path=missing.zip"],
            "missing.zip: no such file or folder",
        ),
        ([*DIGITS, "--set", "data.classes=0,1,2"], "class '3' is not in data.classes = 0,1,2"),
        ([*DIGITS, "--set", "data.partition.classes=11"], "the images have only 10 classes"),
        (DIGITS, "data.partition: too few images: 412 "),
        (
            [*DRAWN_DIGITS, "--set=encoder.path=before"],
            "work/before': there is no ",
        ),
        (
            [*DRAWN_DIGITS, "--set=encoder.path=."],
            "work/model/global.safetensors; it must be a file of an encoder, or the folder of a ",
        ),
        (
            [*DRAWN_DIGITS, "--set=method=ifca", "--set=fed-react.clusters=11"],
            "fed-react.clusters = 11: must be at most 10, the number of clients that can take part",
        ),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    fedproto: Fedproto, flower: Fake, work_folder: Path, arguments: list[str], message: str
) -> None:
    fake = flower("completed")
    (work_folder / "broken.toml").write_text("rounds = \n")
    (work_folder / "plain").mkdir()
    (work_folder / "plain" / "pyproject.toml").write_text("[project]\n")
    outcome = fedproto("run", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert fake.import_paths == []  # no SuperLink was made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=20", ("rounds", 20)),
        ("fuels.beta=0.5", ("fuels.beta", 0.5)),
        ("fuels.intra=false", ("fuels.intra", False)),
        ("method=fedavg", ("method", "fedavg")),
        ('data.name="10"', ("data.name", "10")),
        ("data.path=a=b.csv", ("data.path", "a=b.csv")),
        ("data.path=", ("data.path", "")),
        ("data.path=/tmp/true", ("data.path", "/tmp/true")),
    ],
)
def test_a_value_is_toml_or_else_the_text_itself(text: str, expected: tuple[str, object]) -> None:
    assert run_settings._change(text) == expected


def test_a_users_module_in_the_current_folder_is_found_here_and_at_the_nodes(
    fedproto: Fedproto, flower: Fake, work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = flower("completed")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (work_folder / "my_own_series.py").write_text(
        "import numpy as np\n"
        "from fedproto_app.data.series import ClientSeries\n\n\n"
        "def load(settings):\n"
        "    yield ClientSeries('a', np.arange(900.0))\n"
    )
    assert fedproto("run", "--set", "data.source=my_own_series:load").code == 0
    assert fake.import_paths == [work_folder]


def test_where_no_app_is_around_flower_gets_one_of_the_installed_package(
    fedproto: Fedproto, flower: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_settings.nearest_app() is None
    fake = flower("completed")
    outcome = fedproto("run", "--set", "output.name=first")
    assert outcome.code == 0, outcome.err
    app, config, *_ = fake.submitted[0]
    assert app.parent == fake.homes[0]  # goes when the run is over
    assert not app.exists()
    assert settings_from(config) == settings_from(
        {"output.dir": str(tmp_path / "runs"), "output.name": "first", "nodes.minimum": 2}
    )


@pytest.mark.parametrize(
    ("device", "gpu_count", "nodes", "cpus", "expected"),
    [
        ("cpu", 4, 2, 1, 0.0),
        ("auto", 0, 2, 1, 0.0),
        ("auto", 1, 2, 1, 0.5),
        ("cuda", 1, 3, 1, 0.333),  # rounded down: three such shares must fit
        ("auto", 1, 100, 4, 0.5),  # of eight CPUs, two nodes at once
        ("cuda:1", 2, 1, 1, 2.0),
        ("auto", 1, 1, 16, 1.0),  # more CPUs than there are: one at once
    ],
)
def test_nodes_share_the_gpus_there_are(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gpu_count: int,
    nodes: int,
    cpus: int,
    expected: float,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu_count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpu_count)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert flower_run.gpus_of_a_node(device, nodes, cpus) == expected
