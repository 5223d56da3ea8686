"""The Python interface: the programs of docs/python.md, and the refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedproto_app
from fedproto_app.core.errors import DataError, FedProtoError, SettingsError
from fedproto_app.core.methods import METHODS
from fedproto_app.core.tasks import small_run

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedproto_app.Run:
    """Make a small run on data with times, with state in the run's folder."""
    folder = tmp_path_factory.mktemp("api")
    hours = pd.date_range("2026-01-01", periods=24 * 14, freq="h", name="time")
    waves = [np.sin(np.arange(len(hours)) * np.pi / 12 + phase) for phase in range(4)]
    frame = pd.DataFrame(dict(zip("abcd", waves, strict=True)), index=hours)
    frame.to_csv(folder / "waves.csv")
    return fedproto_app.run(
        {
            "rounds": 3,
            "model": {"representation-dim": 16},
            "data": {"source": "wide-csv", "path": str(folder / "waves.csv")},
            "output": {"dir": str(folder / "runs"), "pictures": False},
        },
        method="fedavg",
        progress=False,
    )


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """All programs, one after the other, as a script without a main guard."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(programs) == 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(programs))
    root = PAGE.parents[1]
    (tmp_path / "configs").symlink_to(root / "configs")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "unknown method; did you mean" in done.stdout
    assert "round 2/2" in done.stderr


def test_importing_the_package_costs_nothing() -> None:
    code = (
        "import sys, fedproto_app; print(*{'torch', 'flwr', 'pandas', 'rich'} & set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fedproto_app.nothing


def test_tables_equal_the_artefacts(run: fedproto_app.Run) -> None:
    assert list(run.rounds.index) == [1, 2, 3]
    assert run.clients["client"].tolist() == list("abcd")
    assert run.clients["mse"].mean() == pytest.approx(run.summary["mse"])
    assert run.settings.method == "fedavg"
    assert str(run.path) in repr(run)


def test_a_clients_model_is_the_one_that_its_errors_are_of(run: fedproto_app.Run) -> None:
    model, row = run.model("b"), run.clients.set_index("client").loc["b"]
    assert model.errors["mse"] == row["mse"]
    assert model.kept_round == row["kept_round"]
    assert model.scale["mean"] == pytest.approx(0, abs=0.2)
    assert all(torch.isfinite(value).all() for value in model.parameters.values())
    with pytest.raises(FedProtoError, match="no kept model of client 'z'"):
        run.model("z")


def test_a_forecast_of_a_frame_equals_the_forecast_of_its_file(
    run: fedproto_app.Run, tmp_path: Path
) -> None:
    """Forecasts have dates, both nodes' clients, and the order of the columns."""
    from fedproto_app.data.sources import load_histories
    from fedproto_app.serving import forecast, open_state

    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    forecasts = run.forecast(frame[["b", "a"]], steps=3)
    assert set(forecasts["client"]) == {"a", "b"}
    assert forecasts["time"].iloc[0] == frame.index[-1] + pd.Timedelta(hours=1)
    series = load_histories(run.settings.data)
    for node in ("0", "1"):
        expected, _ = forecast(open_state(run.path / "state" / node), series, 3)
        for prediction in expected:
            ours = forecasts[forecasts["client"] == prediction.client]
            if len(ours):
                np.testing.assert_allclose(ours["forecast"], prediction.values, rtol=1e-9)
                np.testing.assert_allclose(
                    ours["upper_95"], prediction.limits["upper_95"], rtol=1e-9
                )


def test_without_a_frame_the_runs_own_source_is_read(run: fedproto_app.Run) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    forecasts = run.forecast(steps=2)
    pd.testing.assert_frame_equal(forecasts, run.forecast(frame, steps=2))
    names = ["client", "time", "forecast", "lower_80", "upper_80", "lower_95", "upper_95"]
    assert list(forecasts.columns) == names
    assert forecasts["client"].tolist() == list("aabbccdd")
    first, second = forecasts[0::2], forecasts[1::2]
    inside = first[["lower_95", "lower_80", "forecast", "upper_80", "upper_95"]].to_numpy()
    assert (np.diff(inside, axis=1) >= 0).all()
    assert second["lower_80"].isna().all()  # models forecast one step at once
    assert {"coverage_80", "width_95"} <= set(run.clients.columns) & set(run.summary)


def test_impossible_forecasts_are_refused(run: fedproto_app.Run) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    with pytest.raises(FedProtoError, match=r"no kept model of \['z'\]; there are: a, b, c, d"):
        run.forecast(frame, clients=["z"])
    with pytest.raises(DataError, match="column 'a' holds"):
        run.forecast(frame[["a"]].astype(str))
    with pytest.raises(DataError, match="comes twice"):
        run.forecast(pd.concat([frame, frame.tail(1)]))
    with pytest.raises(DataError, match="has no times to tell its step"):
        run.forecast(frame.reset_index(drop=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "fuls"}, "unknown method; did you mean "),
        ({"fuels__tau": 1}, "did you mean fuels.temperature"),
        ({"config": "missing.toml"}, "missing.toml: No such file"),
        ({"config": {"rounds": 0}}, "rounds = 0: "),
    ],
)
def test_mistakes_are_the_command_lines_as_exceptions(
    arguments: dict[str, Any], message: str
) -> None:
    config = arguments.pop("config", None)
    with pytest.raises(SettingsError, match=re.escape(message)):
        fedproto_app.run(config, **arguments)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match=r"summary\.json"):
        fedproto_app.load(tmp_path)


def test_a_clients_memory_comes_with_its_model(tmp_path: Path) -> None:
    """Fed-REACT's clients have no model except their heads."""
    settings = {
        **small_run("sequence-classification"),
        **METHODS["fed-react"].small,
        "method": "fed-react",
        "output.dir": str(tmp_path),
    }
    finished = fedproto_app.run(settings, nodes=1, workers=1, progress=False)
    parameters = finished.model(finished.clients["client"][0]).parameters
    assert "memory/local" in parameters
