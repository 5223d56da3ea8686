"""The Python interface: the programs of docs/python.md, and the refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedproto_app
from fedproto_app.core.errors import DataError, FedProtoError, SettingsError
from fedproto_app.core.methods import METHODS
from fedproto_app.experiments.sweep_runs import Job, SweepProgress, make_run
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.tasks.table import small_run

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
def test_kept_models_forecast_after_a_response(tmp_path: Path, method: str) -> None:
    """With columns known in advance, further rounds come before the method's."""
    hours = pd.date_range("2026-01-05", periods=24 * 21, freq="h")
    warmth = np.random.default_rng(0).normal(0, 5, (3, len(hours)))
    frame = pd.concat(
        pd.DataFrame({"unique_id": f"site-{n}", "ds": hours, "y": 50 + warm, "warmth": warm})
        for n, warm in enumerate(warmth)
    )
    settings = {"rounds": 2, "data.known": "warmth", "output.dir": str(tmp_path)}
    run = fedproto_app.run(frame, settings, method=method, nodes=1, workers=1, progress=False)
    run.predictions()  # raises an error if these models have other errors than the run says
    assert not [name for name in run.model("site-0").parameters if name.startswith("response")]


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


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All programs, one after the other."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(programs) == 7
    monkeypatch.chdir(tmp_path)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("\n".join(programs), main.__dict__)
    printed = capsys.readouterr()
    assert "unknown method; did you mean" in printed.out
    assert "round 2/2" in printed.err
    assert "'encoder.0.weight': (32, " in printed.out


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
    assert forecasts["unique_id"].tolist() == list("bbbaaa")
    assert forecasts["ds"].iloc[0] == frame.index[-1] + pd.Timedelta(hours=1)
    series = load_histories(run.settings.data)
    for node in ("0", "1"):
        expected, _ = forecast(open_state(run.path / "state" / node), series, 3)
        for prediction in expected:
            ours = forecasts[forecasts["unique_id"] == prediction.client]
            if len(ours):
                np.testing.assert_allclose(ours["y_hat"], prediction.values, rtol=1e-9)
                np.testing.assert_allclose(ours["hi-95"], prediction.limits["hi-95"], rtol=1e-9)


def test_nights_that_never_have_a_value_are_nan_and_a_warning(run: fedproto_app.Run) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)[["a", "b"]]
    frame.loc[frame.index.hour >= 22, "b"] = np.nan
    with pytest.warns(UserWarning, match="^b: no forecast from 22:00 to 23:00, because no value"):
        forecasts = run.forecast(frame, steps=24)
    missing = forecasts.loc[forecasts["y_hat"].isna(), ["unique_id", "ds"]].to_numpy().tolist()
    assert [(name, time.hour) for name, time in missing] == [("b", 22), ("b", 23)]


def test_days_of_a_long_frame_without_a_value_are_ahead(tmp_path: Path) -> None:
    from fedproto_app.api import _settings_of
    from fedproto_app.data.sources import load_histories

    days = pd.date_range("2026-01-01", periods=60, freq="D")
    parts = [pd.DataFrame({"unique_id": name, "ds": days, "y": 1.0}) for name in "ab"]
    frame = pd.concat(parts, ignore_index=True)
    frame.loc[frame["ds"] > days[56], "y"] = np.nan
    frame.loc[(frame["ds"] > days[50]) & (frame["unique_id"] == "b"), "y"] = np.nan
    table = _settings_of(frame, None, ("", "", ""), None, {}, str(tmp_path))
    assert [len(series.values) for series in load_histories(settings_from(table).data)] == [57, 57]


def test_without_a_frame_the_runs_own_source_is_read(run: fedproto_app.Run) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    forecasts = run.forecast(steps=2)
    pd.testing.assert_frame_equal(forecasts, run.forecast(frame, steps=2))
    names = ["unique_id", "ds", "y_hat", "lo-80", "hi-80", "lo-95", "hi-95"]
    assert list(forecasts.columns) == names
    assert forecasts["unique_id"].tolist() == list("aabbccdd")
    first, second = forecasts[0::2], forecasts[1::2]
    inside = first[["lo-95", "lo-80", "y_hat", "hi-80", "hi-95"]].to_numpy()
    assert (np.diff(inside, axis=1) >= 0).all()
    assert second["lo-80"].isna().all()  # models forecast one step at once
    assert len(run.forecast()) == 4
    assert {"coverage_80", "width_95"} <= set(run.clients.columns) & set(run.summary)


def test_impossible_forecasts_are_refused(run: fedproto_app.Run) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    with pytest.raises(
        FedProtoError, match=r"'z' cannot be forecast: .*; there are models of a, b, c, d"
    ):
        run.forecast(frame, clients=["z"])
    with pytest.raises(DataError, match="column 'a', row 0: 'x' is not a number"):
        run.forecast(frame[["a"]].assign(a="x"))
    with pytest.raises(FedProtoError, match="steps = 0: expected a whole number"):
        run.forecast(steps=0)
    with pytest.raises(DataError, match="comes twice"):
        run.forecast(pd.concat([frame, frame.tail(1) + 1]))
    with pytest.raises(DataError, match="has no times to tell its step"):
        run.forecast(frame.reset_index(drop=True))


def test_a_frame_is_trained_on_as_its_file(run: fedproto_app.Run, tmp_path: Path) -> None:
    """The same bytes, from a long frame with other names; each round's row arrives."""
    wide = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    long = wide.reset_index().melt("time", var_name="site", value_name="load")
    rows: list[dict[str, Any]] = []
    ours = fedproto_app.run(
        long,
        {"rounds": 3, "model": {"representation-dim": 16}, "output": {"dir": str(tmp_path)}},
        id_col="site",
        target_col="load",
        method="fedavg",
        data__calendar="none",
        output__pictures=False,
        on_round=rows.append,
        progress=False,
    )
    for name in ("clients.csv", "partition.csv"):
        if (run.path / name).exists():
            assert (ours.path / name).read_bytes() == (run.path / name).read_bytes()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[1]["loss.total"] == ours.rounds["loss.total"][2]
    assert ours.settings.data.period == 24  # a day of its clock
    pd.testing.assert_frame_equal(ours.forecast(), run.forecast())
    assert fedproto_app.compare([ours.path]).shape[0] == 1


def test_predictions_have_the_errors_of_the_run(run: fedproto_app.Run) -> None:
    """One step ahead, so each test sample is in the frame once."""
    frame = run.predictions()
    names = ["unique_id", "ds", "y", "y_hat", "lo-80", "hi-80", "lo-95", "hi-95"]
    assert list(frame.columns) == names
    clients = run.clients.set_index("client")
    for client, rows in frame.groupby("unique_id"):
        std = run.model(str(client)).scale["std"]
        error = ((rows["y"] - rows["y_hat"]) / std).pow(2).mean()
        assert error == pytest.approx(clients.loc[client, "mse"], rel=1e-5)
        inside = rows["y"].between(rows["lo-80"], rows["hi-80"]).mean()
        assert inside == pytest.approx(clients.loc[client, "coverage_80"], abs=0.03)
    whole = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    last = frame[frame["unique_id"] == "a"].set_index("ds")["y"]
    pd.testing.assert_series_equal(
        last, whole["a"][last.index], check_names=False, check_freq=False
    )


def test_runs_are_compared_reported_and_shown(run: fedproto_app.Run, tmp_path: Path) -> None:
    table = fedproto_app.compare(run)
    assert table["method"].tolist() == ["FedAvg"]
    assert table["mse_mean"][0] == pytest.approx(run.summary["mse"])
    page = fedproto_app.report([run, run.path], tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    assert "FedAvg" in page.read_text()
    shown = run._repr_html_()
    assert str(run.path) in shown
    assert f"{run.summary['mse']:.4f}" in shown
    with pytest.raises(FedProtoError, match="no such folder"):
        fedproto_app.compare(tmp_path / "none")


def test_a_check_gives_a_row_a_client(run: fedproto_app.Run, tmp_path: Path) -> None:
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    facts = fedproto_app.check(frame.assign(short=frame["a"].where(frame.index < frame.index[9])))
    assert facts["verdict"].tolist() == ["ok"] * 4 + ["refused"]
    assert facts["period"].tolist()[:4] == [24] * 4
    assert facts["start"][0] == frame.index[0]
    assert "data.scale = 'mean,std' gives a client without history" in facts["notes"][4]
    pd.testing.assert_frame_equal(fedproto_app.check(run.settings.data.path), facts[:4])
    strict = fedproto_app.check(frame, data__period=150)
    assert strict["verdict"].unique().tolist() == ["newcomer"]
    (tmp_path / "cars" / "train" / "a").mkdir(parents=True)
    (tmp_path / "cars" / "train" / "a" / "1.png").write_bytes(b"")
    with pytest.raises(FedProtoError, match="holds images"):
        fedproto_app.check(tmp_path / "cars")


def make_runs_here(
    jobs: Sequence[Job], nodes: int, _: int, progress: SweepProgress
) -> Iterator[tuple[Job, str]]:
    """Make the runs of a sweep in this process instead of a process each."""
    for job in jobs:
        progress.starts(job)
        make_run(flat_settings(job.settings), nodes, 1)
        yield job, ""


def test_a_sweep_chooses_by_validation_error(
    run: fedproto_app.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedproto_app.experiments.sweep.make_runs", make_runs_here)
    frame = pd.read_csv(run.settings.data.path, index_col="time", parse_dates=True)
    arguments = {"method": "analytic", "folder": tmp_path / "swept", "progress": False}
    swept = fedproto_app.sweep(frame, grid={"analytic.sharing": ["none", "shrunk"]}, **arguments)
    assert len(swept.table) == 2
    chosen = swept.table.set_index("chosen").loc["yes"]
    assert chosen["validation"] == swept.table["validation"].min()
    assert swept.best.settings.method_settings.sharing == chosen["analytic.sharing"]
    with pytest.raises(SettingsError, match="nothing to sweep"):
        fedproto_app.sweep(frame, method="analytic")
    with pytest.raises(SettingsError, match=r"model\.module = '__main__:Net': other processes"):
        fedproto_app.sweep(model="__main__:Net", grid={"rounds": [1, 2]}, method="fedavg")


NOTEBOOK = """
import pandas as pd
import torch

import fedproto_app


class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.encoder = torch.nn.Linear(inputs, 4)
        self.head = torch.nn.Linear(4, outputs)


def stop(row):
    raise KeyError("enough")


frame = pd.read_csv("waves.csv", index_col="time", parse_dates=True)
settings = {"output": {"pictures": False}, "rounds": 2}
mine = fedproto_app.run(frame, settings, model=Net, method="fedavg", progress=False)
assert "encoder.weight" in mine.model("a").parameters
assert len(mine.predictions()) and len(mine.forecast()) == 4
try:
    fedproto_app.run(frame, settings, model=Net, method="fedavg", progress=False, on_round=stop)
except KeyError:
    print("stopped as asked")
# Worker processes need no main guard, and import what the current folder has.
fedproto_app.run({**settings, "data": {"source": "plants:sites"}}, method="naive", progress=False)
"""
PLANTS = """
import numpy as np

from fedproto_app.data.series import ClientSeries


def sites(settings):
    for name in "ab":
        yield ClientSeries(name, np.sin(np.arange(336.0) / 4))
"""


def test_a_model_of_a_notebook_is_trained_and_forecasts(
    run: fedproto_app.Run, tmp_path: Path
) -> None:
    (tmp_path / "waves.csv").write_bytes(Path(run.settings.data.path).read_bytes())
    (tmp_path / "plants.py").write_text(PLANTS)
    done = subprocess.run(
        [sys.executable, "-"],
        input=NOTEBOOK,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PAGE.parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped as asked\n", "")


def test_a_model_that_nobody_can_import_is_refused() -> None:
    class Hidden(torch.nn.Module):
        pass

    for model in (Hidden, Hidden(), lambda inputs, outputs: None):
        with pytest.raises(SettingsError, match="expected a class or function that its module"):
            fedproto_app.run(model=model, method="fedavg")
    with pytest.raises(SettingsError, match=r"model\.module = 'no_module:Net': No module"):
        fedproto_app.run(model="no_module:Net", method="fedavg", progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2],), "the frame is a list"),
        ((None, None, "ds"), "'ds' names a column, but there is no frame"),
        (("a.toml", {"rounds": 1}), "settings are given twice"),
        ((pd.DataFrame({"a": [1.0]}), {"data.path": "x.csv"}), "data.path = 'x.csv': the data are"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: tuple[Any, ...], message: str) -> None:
    time_col = {"time_col": arguments[2]} if len(arguments) > 2 else {}
    with pytest.raises(FedProtoError, match=message):
        fedproto_app.run(*arguments[:2], **time_col)


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
    with pytest.raises(FedProtoError, match=r"settings\.toml: No such file"):
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
