"""A task defined by this module only: the app needs nothing but a row and a folder of its name in
the rooms above."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedproto_app.cli.data import data_app
from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.tasks import TASKS, TaskRecord
from fedproto_app.data.format import Format, Source, all_formats
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.experiments.invariants import SmallRuns, one_node_equals_eight
from fedproto_app.report.check.findings import Checked
from fedproto_app.report.forecasting.report import ForecastingReport
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.settings.fit import TASK_CHECKS
from fedproto_app.tasks.forecasting.clients import series_shard
from fedproto_app.tasks.forecasting.metrics import FORECASTING
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import Admission, admission, load_shard, make_task

MODULE = __name__
SMALL = {"data.source": "dice", "data.period": 6, "rounds": 2, "model.representation-dim": 8}
MADE_UP = TaskRecord(name="gambling", folder="gambling", holds="dice")


@dataclass(frozen=True)
class Dice:
    """The data of a user's source of this task."""

    faces: int = 6


def own_dice(settings: DataSettings) -> Dice:
    return Dice()


class Gambling(ForecastingTask):
    """A task that differs only in its name."""


class Winnings(ForecastingReport):
    """A report that differs only in how its figure is named."""

    metrics = replace(FORECASTING, axis="winnings (€)")


def throw(settings: Settings, partition: int, partitions: int) -> Shard:
    """Eight players who throw often enough to learn, and one who lost the dice."""
    rng = np.random.default_rng(settings.data.synthetic.seed)
    thrown = [
        ClientSeries(f"player-{number}", rng.integers(1, 7, 150).astype(np.float64))
        for number in range(8)
    ]
    shard = series_shard(thrown[partition::partitions], settings.data)
    return Shard(shard.clients, {"bob": "lost"} if partition == 0 else {})


def loaded_dice(settings: Settings) -> dict[str, str | None]:
    return {"ann": None, "bob": "its dice are loaded"}


def check_dice(settings: Settings, show_all: bool) -> Checked:
    print(f"{settings.data.period} throws, all shown: {show_all}")
    return Checked(settings.data.period > 2, {"data.horizon": 6})


def require_luck(settings: Settings) -> None:
    if settings.seed == 13:
        raise SettingsError("seed = 13: brings no luck")


@pytest.fixture(autouse=True)
def _register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "gambling", MADE_UP)
    dice = Format((Source("dice", "dice", own_dice, "no path"),))
    formats = {**all_formats(), "dice": dice}
    monkeypatch.setattr("fedproto_app.data.format.all_formats", lambda: formats)
    modules = {
        "tasks.gambling": SimpleNamespace(SMALL_RUNS={"gambling": SMALL}),
        "tasks.gambling.task": SimpleNamespace(TASK_CLASSES={"gambling": Gambling}),
        "tasks.gambling.clients": SimpleNamespace(
            load_shard=throw,
            read=lambda settings: None,  # dice are thrown by every node
            admission=lambda settings: Admission(loaded_dice(settings)),
            POOLS=(Dice,),
        ),
        "report.gambling.report": SimpleNamespace(REPORTS={"gambling": Winnings}),
        "report.check.gambling": SimpleNamespace(check=check_dice),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"fedproto_app.{name}", module)
    monkeypatch.setitem(TASK_CHECKS, "gambling", require_luck)


def test_settings_know_it_and_its_own_contradictions() -> None:
    assert settings_from({"task": "gambling", "method": "solo"}).task == "gambling"
    with pytest.raises(SettingsError, match=r"^seed = 13: brings no luck$"):
        settings_from({"task": "gambling", "method": "solo", "seed": 13})


def test_its_clients_and_its_class_and_its_report() -> None:
    settings = settings_from({"task": "gambling", "method": "solo", "data.source": "dice"})
    assert admission(settings).reasons == {"ann": None, "bob": "its dice are loaded"}
    assert load_shard(settings, 0, 2).refused == {"bob": "lost"}
    task = make_task(settings, DataShape())
    assert type(task) is Gambling
    assert report_for("gambling").metrics.axis == "winnings (€)"


def test_methods_train_on_it(tmp_path: Path) -> None:
    runs = SmallRuns("gambling", "ditto", tmp_path)
    deviation = one_node_equals_eight(runs)
    assert deviation.held, deviation
    run = runs.run("eight", 8)
    assert set(read_clients(run).clients) == {f"player-{n}" for n in range(8)}
    assert read_run(run).task == "gambling"
    assert "bob" in (run / "rounds.jsonl").read_text()


def test_its_sources_are_no_other_tasks() -> None:
    with pytest.raises(DataError, match=r"holds dice; set task = 'gambling', or data\.source to"):
        load_shard(settings_from({"data.source": "dice"}), 0, 1)
    with pytest.raises(DataError, match=r"holds images; .*data\.source to dice: dice or pack"):
        admission(settings_from({"task": "gambling", "method": "solo", "data.source": "digits"}))


def data_check(*arguments: str) -> tuple[int, str]:
    """Return the exit code and output."""
    result = CliRunner().invoke(data_app, ["check", *arguments])
    return result.exit_code, result.output


def test_data_check_finds_its_checker() -> None:
    """The command also prints a line with the settings that the checker found."""
    run = "fedproto run --set task=gambling --set method=analytic --set data.source="
    assert data_check("--source", "dice", "--all") == (
        0,
        f"24 throws, all shown: True\ntrain on it: {run}dice --set data.horizon=6\n",
    )
    result = data_check("--source", f"{MODULE}:own_dice", "--set", "data.period=2")
    command = f"{MODULE}:own_dice --set data.horizon=6 --set data.period=2"
    assert result == (1, f"2 throws, all shown: False\nonce the data are mended: {run}{command}\n")


@pytest.mark.parametrize("name", ["a\0b", "lone\udc80"])
def test_a_name_that_cannot_be_stored_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's name may hold what neither SQLite nor a message can."""
    monkeypatch.setattr(f"{__name__}.loaded_dice", lambda settings: {name: None})
    settings = settings_from({"task": "gambling", "method": "solo", "data.source": "dice"})
    with pytest.raises(DataError, match=r"^client '.*': its name holds codes that are no text;"):
        admission(settings)
