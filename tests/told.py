"""What the messages of nodes and server say, read and changed without the product's models."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Message

from fedproto_app.core.metrics import Metric, metric_of, metric_row

Told = dict[str, Any]


def told(message: Message) -> Told:
    """The fields of what a message says; none if it says nothing."""
    record = message.content.config_records.get("told", {})
    fields: Told = json.loads(record.get("json", "{}"))
    return fields


def tell(message: Message, fields: Told) -> Message:
    """The message with these fields in place of its own."""
    message.content.config_records["told"]["json"] = json.dumps(fields).encode()
    return message


def metrics_told(fields: Told) -> dict[Metric, list[float]]:
    return {metric_of(row): values for row, values in fields.get("metrics", [])}


def with_metric(fields: Told, metric: Metric, values: object) -> Told:
    """The fields, with other values of a metric, or without it (None)."""
    metrics = metrics_told(fields) | {metric: values}
    rows = [
        (metric_row(name), reported) for name, reported in metrics.items() if reported is not None
    ]
    return {**fields, "metrics": rows}
