"""Mixed precision in forecasting: close to float32, with bfloat16 in products only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedproto_app.core.messages import Order, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.node.store import ClientStore
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import load_shard, make_task, small_run
from tests.helpers.whole_orders import WholeNode

DISTANCE = 0.005  # of the mean validation error after three rounds


def trained(folder: Path, method: str, precision: str) -> Reply:
    """Return the reply after three rounds, where states and sent arrays must be float32."""
    settings = settings_from(
        {
            **small_run("forecasting"),
            "method": method,
            "precision": precision,
            "data.synthetic.clients": 3,
            "data.synthetic.days": 10,
            "model.representation-dim": 16,
            "optimizer.learning-rate": 0.01,
        }
    )
    shard = load_shard(settings, 0, 1)
    store = ClientStore(folder / precision, 10**9, lasting=True)
    node = WholeNode(make_learner(settings, make_task(settings, shard.shape)), shard, store)
    names = list(shard.clients)
    for server_round in (1, 2, 3):
        reply = node.train(Order("run", "", server_round, names, evaluate=True))
    (state,) = store.read_states(names, 3)
    tensors = [value for name, value in state.tensors.items() if not name.startswith("steps")]
    assert {value.dtype for value in tensors if value.dtype != torch.bool} == {torch.float32}
    assert {array.dtype.name for array in reply.arrays.values()} <= {"float32"}
    return reply


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_bfloat16_trains_to_nearly_the_same(tmp_path: Path, method: str) -> None:
    criterion = Metric("validation-mse")
    exact, mixed = (trained(tmp_path, method, precision) for precision in ("float32", "bfloat16"))
    errors = [sum(reply.metrics[criterion]) / len(reply.names) for reply in (exact, mixed)]
    assert errors[0] != errors[1]
    assert errors[1] == pytest.approx(errors[0], rel=DISTANCE)
    assert trained(tmp_path / "again", method, "tf32").metrics == exact.metrics  # on a CPU
