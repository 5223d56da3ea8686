"""Runs in MLflow, read back by its own client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.report.runs import read_run
from tests.report.made_runs import make_run


@pytest.mark.filterwarnings("ignore")  # of MLflow's own code, with newer libraries
def test_a_run_and_no_second_one(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from fedproto_app.report.export import write_mlflow

    settings = {"seed": 0, "fuels": {"beta": 30.0}, "data": {"path": "x" * 7000}}
    run = make_run(tmp_path / "my run;--", settings=settings, dataset="../toy")
    (run / "flower.log").write_text("not told")
    (run / "link.csv").symlink_to("/etc/hostname")
    address = write_mlflow([read_run(run)], str(tmp_path / "store"))
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("_/_/_2f_toy")
    (exported,) = client.search_runs([experiment.experiment_id])
    assert exported.info.run_name == "my_20_run_3b_--"
    assert exported.info.status == "FINISHED"
    assert exported.data.params["fuels/beta"] == "30.0"
    assert len(exported.data.params["data/path"]) == 6000
    assert exported.data.metrics["summary/mse"] == 0.375
    assert exported.data.tags["method"] == "fuels"
    history = client.get_metric_history(exported.info.run_id, "loss/total")
    assert [(point.step, point.value) for point in history] == [(1, 4.0), (2, 2.0), (3, 4 / 3)]
    names = {artifact.path for artifact in client.list_artifacts(exported.info.run_id)}
    assert names == {"settings.toml", "summary.json", "rounds.jsonl", "clients.csv"}
    with pytest.raises(FedProtoError, match="was already exported, as MLflow's run"):
        write_mlflow([read_run(run)], str(tmp_path / "store"))


def test_without_the_library_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedproto_app.report.export import write_mlflow

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SettingsError, match=r'pip install "fedproto-app\[mlflow\]"'):
        write_mlflow([read_run(make_run(tmp_path / "run"))], str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()
