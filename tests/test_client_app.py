"""What the ClientApp does around a node's work."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedproto_app import client_app
from fedproto_app.data.shard import Shard
from fedproto_app.representations import represented
from tests.local_grid import run_locally, sequence_settings, synthetic_nodes


def flushes_denormals() -> bool:
    return not (torch.tensor([1e-40]) * torch.ones(1)).any()


def test_making_vectors_is_working_time_and_without_denormals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def watched(*arguments: Any) -> Shard:
        flushed.append(flushes_denormals())
        return represented(*arguments)

    clock = SimpleNamespace(perf_counter=itertools.count(0, 1000).__next__)
    monkeypatch.setattr(client_app, "represented", watched)
    monkeypatch.setattr(client_app, "time", clock)  # the node's own clock goes on as ever
    settings = sequence_settings(tmp_path, rounds=2, **{"encoder.rounds": 1})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes)
    rounds = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    thousands = [int(line["node_seconds"] // 1000) for line in rounds]
    assert thousands == [0, 4, 4]  # two nodes, training and evaluation
    assert flushed == [True] * 8
    assert not flushes_denormals()
