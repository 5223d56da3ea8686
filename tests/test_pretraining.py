"""A first phase before a method's rounds follows its record, whatever the phase learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedproto_app.core.method import Method, Pretraining
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.settings import settings_from
from fedproto_app.settings.fit import pretraining_releases
from fedproto_app.strategies.common.learner import make_learner, samples_after_pretraining
from fedproto_app.strategies.fedavg import FedAvgLearner
from fedproto_app.strategies.solo import SoloLearner, SoloStrategy
from fedproto_app.tasks.table import make_task
from tests.helpers.local_grid import run_locally, sequence_settings, synthetic_nodes

ordered_names: list[list[str]] = []


def same_samples(shard: Shard, names: list[str], *arguments: Any) -> Shard:
    """Return the clients unchanged; record the ordered names."""
    ordered_names.append(names)
    return shard


METHOD = Method(
    name="averaged-then-alone",
    strategy=SoloStrategy,
    learner=SoloLearner,
    tasks=("sequence-classification",),
    pretraining=Pretraining(
        table="model",
        rounds=lambda settings: settings.rounds - 1,
        check=lambda settings: None,
        model="fedproto_app.tasks.sequences.task:causal_cnn_model",
        strategy="fedproto_app.strategies.fed_react.encoder:PretrainedStrategy",
        learner="fedproto_app.strategies.fedavg:FedAvgLearner",
        samples=f"{__name__}:same_samples",
    ),
)
TABLE = {"task": "sequence-classification", "method": f"{__name__}:METHOD", "rounds": 3}


def test_each_round_has_the_learner_and_the_samples_of_its_phase() -> None:
    settings = settings_from(TABLE)
    assert (settings.pretraining_rounds, settings.all_rounds) == (2, 5)
    task = make_task(settings, DataShape((2,), ("a", "b")))
    learners = [type(make_learner(settings, task, number)) for number in (1, 2, 3)]
    assert learners == [FedAvgLearner, FedAvgLearner, SoloLearner]
    samples = [samples_after_pretraining(settings, number) for number in (1, 2, 3)]
    assert samples == [None, None, same_samples]
    ((rounds, (release,)),) = pretraining_releases(settings)
    assert rounds == 2
    assert release.name == "model"


def test_a_method_without_a_first_phase_uses_its_samples_as_they_are() -> None:
    settings = settings_from({**TABLE, "method": "fedavg"})
    assert settings.pretraining_rounds == 0
    assert samples_after_pretraining(settings, 1) is None
    assert pretraining_releases(settings) == []


def test_a_run_goes_through_both_phases(tmp_path: Path) -> None:
    ordered_names.clear()
    settings = sequence_settings(tmp_path, method=TABLE["method"], rounds=2)
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes)
    rounds = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    assert [line["accuracy"] is None for line in rounds] == [True, False, False]
    assert [line["parameters_up"] > 0 for line in rounds] == [True, False, False]
    assert len(ordered_names) == 4  # two nodes, in the two rounds of the method
