"""The fields of nodes' and server's messages, read and changed without the product's models."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Message

from fedproto_app.core.metrics import Metric, metric_of, metric_row

Fields = dict[str, Any]


def fields_of(message: Message) -> Fields:
    """Return a message's fields, {} without any."""
    record = message.content.config_records.get("told", {})
    fields: Fields = json.loads(record.get("json", "{}"))
    return fields


def with_fields(message: Message, fields: Fields) -> Message:
    """Replace the message's fields, and return the message."""
    message.content.config_records["told"]["json"] = json.dumps(fields).encode()
    return message


def reported_metrics(fields: Fields) -> dict[Metric, list[float]]:
    return {metric_of(row): values for row, values in fields.get("metrics", [])}


def with_metric(fields: Fields, metric: Metric, values: object) -> Fields:
    """Return the fields with other values of a metric, or without it (None)."""
    metrics = reported_metrics(fields) | {metric: values}
    rows = [
        (metric_row(name), reported) for name, reported in metrics.items() if reported is not None
    ]
    return {**fields, "metrics": rows}
