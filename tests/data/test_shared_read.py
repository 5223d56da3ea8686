"""A source is read once for all nodes of a simulation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.data import shared_read
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shared_read import forget, read_once
from fedproto_app.engine import starter
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.engine.simulation import simulate, simulate_without_workers
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.tasks.table import load_shard

NODES = 4
MODULE = __name__
calls: list[str] = []
# Python imports it when it starts: the process and its forks note when they open the file.
NOTES_OPENED_FILES = """
import os, sys

def note(event, arguments):
    if event == "open" and str(arguments[0]).endswith("loads.csv"):
        with open({log!r}, "a") as log:
            log.write(f"{{os.getpid()}}\\n")

sys.addaudithook(note)
"""


def noted(settings: DataSettings) -> Iterator[ClientSeries]:
    """A user's function that notes its calls."""
    calls.append(settings.source)
    yield from (ClientSeries(f"c{n}", np.sin(np.arange(200.0)) + n) for n in range(NODES))


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    calls.clear()
    forget()
    yield
    forget()


def run_settings(folder: Path, **changes: object) -> Settings:
    small = {"rounds": 1, "method": "analytic", "output.dir": str(folder / "runs")}
    return settings_from({**small, "data.period": 6, "output.name": "test", **changes})


def written(folder: Path, clients: int = NODES) -> Path:
    path = folder / "loads.csv"
    values = {f"c{n}": np.sin(np.arange(200.0)) + n for n in range(clients)}
    pd.DataFrame(values).to_csv(path, index=False)
    return path


def test_all_nodes_of_a_process_share_one_read() -> None:
    settings = settings_from({"data.source": f"{MODULE}:noted", "data.period": 6})
    shards = [load_shard(settings, node, NODES) for node in range(NODES)]
    assert [list(shard.clients) for shard in shards] == [[f"c{n}"] for n in range(NODES)]
    assert len(calls) == 1


def test_the_workers_of_an_engine_share_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = written(tmp_path), tmp_path / "opened"
    (tmp_path / "sitecustomize.py").write_text(NOTES_OPENED_FILES.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(starter, "_starter", None)  # a new one imports the module
    settings = run_settings(tmp_path, **{"data.source": "wide-csv", "data.path": str(path)})
    with WorkerPool(2, tmp_path / "log") as pool:
        folder = simulate(settings, NODES, pool, 2, lambda _: None).path
    assert (folder / "clients.csv").read_text().count("\n") > NODES
    assert len(log.read_text().split()) == 1


def test_a_run_calls_a_users_function_once_and_the_next_run_again(tmp_path: Path) -> None:
    for number in (1, 2):
        changes = {"data.source": f"{MODULE}:noted", "output.name": f"run-{number}"}
        simulate_without_workers(run_settings(tmp_path, **changes), NODES, lambda _: None)
        assert len(calls) == number


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    for file, source in ((path, "wide-csv"), (tmp_path, "csv-folder")):
        settings = DataSettings(source=source, path=str(file))
        first = read_once(count_bytes, settings)
        assert read_once(count_bytes, settings) is first
        path.write_text(path.read_text() + "1,2,3,4\n")
        assert read_once(count_bytes, settings)[0] == first[0] + 8


def test_only_the_newest_content_is_kept_and_only_where_nodes_share_it(tmp_path: Path) -> None:
    first = DataSettings(path=str(written(tmp_path)))
    content = read_once(count_bytes, first)
    assert read_once(count_bytes, DataSettings(), keep=False) is not content
    assert read_once(count_bytes, first, keep=False) is content
    read_once(count_bytes, DataSettings())
    assert len(shared_read._newest) == 1
    assert read_once(count_bytes, first) is not content


def count_bytes(settings: DataSettings) -> list[int]:
    files = Path(settings.path).glob("*.csv") if settings.source == "csv-folder" else None
    paths = files or ([Path(settings.path)] if settings.path else [])
    return [path.stat().st_size for path in paths]
