"""Which checkpoint is read, and which runs may be resumed: by hand, without any training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from fedproto_app.settings import Settings
from tests.helpers.local_grid import small_settings

FILES = ["server.json", "digests.json", "strategy.npz", "model.safetensors"]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedproto_app.core.run_lock._DYING", 0.1)


def written(root: Path, *rounds: int) -> Path:
    """Write checkpoints of these rounds and return the folder."""
    for number in rounds:
        model = {"w": np.full(3, number, np.float32)}
        strategy = {"names": np.array(["a", "b"])}
        write_checkpoint(root, Checkpoint(number, "token", model=model, strategy=strategy))
    return root


def test_the_newest_two_are_kept_and_come_back(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000002", "round-000003"]
    checkpoint, faults = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert faults == []
    assert (checkpoint.server_round, checkpoint.token) == (3, "token")
    assert checkpoint.model["w"].tolist() == [3, 3, 3]
    assert checkpoint.strategy["names"].tolist() == ["a", "b"]


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_one_is_refused_by_name_and_the_one_before_it_read(
    tmp_path: Path, file: str
) -> None:
    newest = written(tmp_path, 1, 2) / "round-000002"
    (newest / file).write_bytes((newest / file).read_bytes()[:-3])
    checkpoint, [fault] = newest_checkpoint(tmp_path)
    assert checkpoint.server_round == 1
    assert "round-000002 is damaged" in fault


def test_another_format_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path, 1) / "round-000001"
    server = json.loads((place / "server.json").read_text())
    server["format"] = 99
    (place / "server.json").write_text(json.dumps(server))
    digests = json.loads((place / "digests.json").read_text())
    digests["server.json"] = sha256((place / "server.json").read_bytes()).hexdigest()
    (place / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(SettingsError, match=r"has format 99, .* reads only 3; resume the run with"):
        newest_checkpoint(tmp_path)


# --- what may be resumed --------------------------------------------------------------------------


def settings_of(tmp_path: Path, task: str = "forecasting", **changes: Any) -> Settings:
    return small_settings(tmp_path, task, **{"method": "solo", "rounds": 2, **changes})


def resumed(tmp_path: Path, task: str = "forecasting", **changes: Any) -> RunFolder:
    with RunFolder(settings_of(tmp_path, task, **changes, **{"output.resume": True})) as folder:
        return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run that has just begun."""
    with RunFolder(settings_of(tmp_path)) as folder:
        return folder.path


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "summary.json").write_text("{}"), "this run is finished"),
        (lambda run: (run / "settings.toml").unlink(), r"no settings\.toml"),
        (lambda run: (run / "settings.toml").write_text("rounds = 0"), "rounds = 0"),
        (lambda run: (run / "settings.toml").write_text("rounds ="), "settings.toml"),
        (shutil.rmtree, "holds no run"),
    ],
)
def test_what_cannot_be_resumed_says_why(
    tmp_path: Path, run: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(run)
    with pytest.raises(SettingsError, match=message):
        resumed(tmp_path)


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path: Path, run: Path) -> None:
    with pytest.raises(SettingsError, match=r"seed = 1, was 0; .*local-epochs = 7, was "):
        resumed(tmp_path, seed=1, **{"local-epochs": 7})
    resumed(tmp_path, **{"nodes.start-deadline": 9.0})  # how long to wait may differ


MASKED = {"method": "kindred", "kindred.sharing": "common", "aggregation.secure": True}
GUESSES = {
    "task": "sequence-classification",
    "method": "analytic",
    "analytic.guess-rounds": 1,
    "keep": "last",
}


@pytest.mark.parametrize(
    ("had", "stopped", "changes", "message"),
    [
        ({}, "rounds", {}, "this run is finished: all 2 rounds are done; to go on, raise rounds"),
        ({}, "rounds", {"rounds": 1}, "rounds = 1: .*test was planned with 2; rounds can only be"),
        ({"patience": 2}, "rounds", {"rounds": 3, "patience": 1}, "patience = 1: .*test had 2"),
        ({}, "rounds", {"rounds": 3, "patience": 1}, "patience = 1: .*test had 0"),
        ({"patience": 1}, "patience", {"patience": 1}, "patience = 1 ended it after round 2"),
        (
            {"patience": 1},
            "patience",
            {"patience": 1, "rounds": 9},
            r"patience = 1 ended it after round 2; .*0: no limit",
        ),
        ({}, "rounds", {"rounds": 3}, "there is no intact checkpoint"),
        (
            MASKED,
            "rounds",
            MASKED,
            "this run is finished: aggregation.secure = true: .*first total",
        ),
        (GUESSES, "rounds", GUESSES, "this run is finished: .* late sites would miss parts"),
        (
            {"privacy.epsilon": 10.0},
            "rounds",
            {"privacy.epsilon": 10.0, "rounds": 3},
            r"rounds = 3: privacy\.epsilon set the noise for 2 rounds",
        ),
        (
            {"privacy.noise-multiplier": 5.0, "privacy.max-epsilon": 2.0},
            "privacy",
            {"privacy.noise-multiplier": 5.0, "privacy.max-epsilon": 2.0},
            r"max-epsilon = 2 ended it after round 2",
        ),
        (
            {"privacy.noise-multiplier": 5.0, "privacy.max-epsilon": 2.0},
            "privacy",
            {"privacy.noise-multiplier": 5.0, "privacy.max-epsilon": 1.0},
            r"max-epsilon = 1: .*test had 2; it can only be increased",
        ),
    ],
)
def test_a_finished_run_can_only_get_more(
    tmp_path: Path, had: dict[str, Any], stopped: str, changes: dict[str, Any], message: str
) -> None:
    noise = {"method": "fedavg", "privacy.mechanism": "gaussian"}
    always = noise if any("privacy" in key for key in had) else {}
    with RunFolder(settings_of(tmp_path, **always, **had)) as folder:
        run = folder.path
    (run / "summary.json").write_text(json.dumps({"rounds": 2, "stopped": stopped}))
    if "checkpoint" not in message:
        written(run / "checkpoint", 2)
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    with pytest.raises(SettingsError, match=message):
        resumed(tmp_path, **always, **changes)
    del before[run / "lock"]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"data.partition.stages": 2}, False),
        ({"data.partition.stages": 2, "classification.stage-schedule": "cyclic"}, True),
        ({"data.partition.stages": 1}, True),
        ({"data.partition.scheme": "given"}, False),  # the source may have stages
        ({"data.partition.scheme": "given", "keep": "best-validation"}, True),
    ],
)
def test_stages_that_depend_on_the_rounds_fix_them(
    tmp_path: Path, changes: dict[str, Any], fits: bool
) -> None:
    table = {"keep": "last", "patience": 0, "rounds": 4, **changes}
    RunFolder(settings_of(tmp_path, "classification", **table)).close()
    resumed(tmp_path, "classification", **table)
    if fits:
        resumed(tmp_path, "classification", **table | {"rounds": 5})
        return
    with pytest.raises(SettingsError, match=r"rounds = 5, was 4: .* the rounds are divided among"):
        resumed(tmp_path, "classification", **table | {"rounds": 5})


def test_a_run_is_neither_resumed_while_it_is_written_nor_ever_overwritten(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    with RunFolder(settings):
        for again in (lambda: RunFolder(settings), lambda: resumed(tmp_path)):
            with pytest.raises(SettingsError, match="is being written by process"):
                again()
    with pytest.raises(SettingsError, match=r"output\.name = 'test'.*already holds a run"):
        RunFolder(settings)
    resumed(tmp_path)
