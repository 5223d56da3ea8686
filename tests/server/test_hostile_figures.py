"""What clients tell of their models is theirs alone: one cannot end a run, nor rank it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedproto_app.core.messages import Reply
from fedproto_app.core.metrics import Metric, Model, metric_row
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import write_reply
from fedproto_app.server.replies import MOST_STRANGERS, read_reply
from tests.local_grid import digits_settings, run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of, with_fields, with_metric
from tests.server.bad_replies import BAD_NODE, rounds
from tests.server.messages import order_message

Fields = dict[str, Any]


def told_by_the_bad_node(change: Callable[[Fields], Fields]) -> Callable[[int, Message], Message]:
    """Change all that it tells of its clients' models."""

    def tamper(node_id: int, reply: Message) -> Message:
        if node_id == BAD_NODE and reply.metadata.message_type != "query":
            fields = fields_of(reply)
            if fields.get("metrics"):
                with_fields(reply, change(fields))
        return reply

    return tamper


def summary(folder: Any) -> Fields:
    table: Fields = json.loads((folder.path / "summary.json").read_text())
    return table


def without_kept_rounds(fields: Fields) -> Fields:
    return {**fields, "metrics": fields["metrics"][:1], "kept_rounds": []}


def with_too_many(fields: Fields) -> Fields:
    values = [1.0] * len(fields["names"])
    flood = [Metric(f"mse/step-{step}", model) for model in Model for step in range(1, 3000)]
    return {
        **fields,
        "metrics": [*fields["metrics"], *([metric_row(metric), values] for metric in flood)],
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_kept_rounds, "malformed reply: an evaluation without all of its kept metrics"),
        (with_too_many, "reports more than 5000 metrics; these are not kept"),
    ],
)
def test_half_of_an_evaluation_leaves_a_whole_run(
    tmp_path: Path, change: Callable[[Fields], Fields], reason: str
) -> None:
    settings = small_settings(tmp_path, rounds=2)
    nodes = synthetic_nodes(4, tmp_path / "nodes")
    folder, _ = run_locally(settings, nodes, tamper=told_by_the_bad_node(change))
    assert summary(folder)["status"] == "completed"
    assert {refusal["reason"] for line in rounds(folder) for refusal in line["refused"]} == {reason}
    listed = (folder.path / "clients.csv").read_text().splitlines()[1:]
    assert len(listed) == 6  # of eight clients


def test_one_node_does_not_say_which_models_a_method_has(tmp_path: Path) -> None:
    def owns(fields: Fields) -> Fields:
        best = [1.0] * len(fields["names"])
        return with_metric(fields, Metric("accuracy", Model.LOCAL), best)

    figures = []
    for name, tamper in (("honest", None), ("liar", told_by_the_bad_node(owns))):
        settings = digits_settings(tmp_path, method="solo", rounds=2, **{"output.name": name})
        nodes = synthetic_nodes(4, tmp_path / name, "digits")
        folder, _ = run_locally(settings, nodes, tamper=tamper)
        run_summary = summary(folder)
        figures.append(
            [
                run_summary[f"{kind}_{kind_of_model}"]
                for kind in ("accuracy", "balanced")
                for kind_of_model in MODELS
            ]
        )
    assert figures[0] == figures[1]


MODELS = ("local", "global")


@pytest.mark.parametrize(("rule", "stops"), [("mean", "patience"), ("median", "rounds")])
def test_one_client_ends_no_run_where_a_rule_bears_it(
    tmp_path: Path, rule: str, stops: str
) -> None:
    """Beside 1e30 every other error vanishes in a mean."""

    def huge(fields: Fields) -> Fields:
        errors = [1e30] + [1.0] * (len(fields["names"]) - 1)
        return with_metric(fields, Metric("validation-mse"), errors)

    changes = {"method": "fedavg", "patience": 2, "aggregation.rule": rule}
    settings = small_settings(tmp_path, rounds=5, **changes)
    nodes = synthetic_nodes(4, tmp_path / "nodes")
    folder, _ = run_locally(settings, nodes, tamper=told_by_the_bad_node(huge))
    assert summary(folder)["stopped"] == stops


def test_a_flood_of_names_is_refused_as_one() -> None:
    def read(strangers: int) -> tuple[Reply | None, list[str]]:
        names = ["a", *(format(number, "x") for number in range(100, 100 + strangers))]
        reply = write_reply(Reply(names, [1] * len(names)), order_message())
        no_metrics: list[Metric] = []
        usable, refusals = read_reply(
            reply, "bad", {"a": 10}, Expected(), no_metrics, lambda metrics: None
        )
        return usable, [refusal.reason for refusal in refusals]

    usable, reasons = read(3)
    assert usable is not None
    assert (usable.names, len(reasons)) == (["a"], 3)
    strangers = MOST_STRANGERS + 2
    assert read(strangers - 1) == (
        None,
        [f"malformed reply: {strangers} clients, where 1 were asked"],
    )
