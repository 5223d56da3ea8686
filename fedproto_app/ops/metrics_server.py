"""Serve metrics of a server or a site over HTTP, for Prometheus.

A server's runs write their numbers into a folder (`FEDPROTO_METRICS`). A site's gate writes its
events into the audit log. This process only reads both, so it needs no special rights and no
connection to Flower.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.core.errors import SettingsError, optional
from fedproto_app.ops.gate.audit import entries

if TYPE_CHECKING:  # an extra
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.metrics_core import Metric

_HOUR = 3600.0  # seconds
_EVENTS = ("order", "reply", "refused", "ended", "left-behind", "too-slow", "run", "end")


class RunsCollector:
    """Collects the numbers of all runs that have written a file into this folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.parser import text_string_to_metric_families

        metrics: dict[str, Metric] = {}
        for file in sorted(self._folder.glob("*.prom")):
            of_file: list[Metric] = []
            with suppress(OSError, ValueError):  # the file is gone, or belongs to another program
                of_file = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
            for metric in of_file:
                metrics.setdefault(metric.name, metric)
                if metrics[metric.name] is not metric:
                    metrics[metric.name].samples += metric.samples
        yield from metrics.values()


class AuditCollector:
    """Collects the events of the last hour from an audit log, and the time of its last event."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        time_now = time.time()
        counts, last = Counter[str](), 0.0
        for written, event in entries(self._file):
            last = max(last, written)
            counts[event] += time_now - _HOUR <= written <= time_now
        events = GaugeMetricFamily(
            "fedproto_audit_events_last_hour", "events in the audit log", labels=["event"]
        )
        for name in _EVENTS:
            events.add_metric([name], counts[name])
        yield events
        yield GaugeMetricFamily(
            "fedproto_audit_last_event_timestamp_seconds", "when the last event was", value=last
        )


def serve(
    host: str, port: int, folder: Path | None, audit: Path | None
) -> tuple[WSGIServer, Thread]:
    """Serve the metrics at ``http://host:port/metrics`` in a thread. Return server and thread.

    folder: the folder of the runs' files. audit: the audit log. port: 0 for any free port. Raises
    `SettingsError` if neither folder nor log is named, if a folder is missing, or if the log or the
    port cannot be used.
    """
    prometheus = optional("prometheus_client", "metrics", "fedproto metrics")
    registry = prometheus.CollectorRegistry()
    if folder is None and audit is None:
        raise SettingsError("nothing to serve: name the runs' --folder, or an --audit log, or both")
    if folder is not None:
        if not folder.is_dir():
            raise SettingsError(f"--folder {folder}: no such folder")
        registry.register(RunsCollector(folder))
    if audit is not None:
        if not audit.parent.is_dir():
            raise SettingsError(f"--audit {audit}: no such folder")
        try:
            next(entries(audit), None)
        except OSError as error:
            raise SettingsError(f"--audit {audit}: {error.strerror}") from None
        registry.register(AuditCollector(audit))
    try:
        started: tuple[WSGIServer, Thread] = prometheus.start_http_server(port, host, registry)
    except OSError as error:
        raise SettingsError(f"--host {host} --port {port}: {error.strerror or error}") from None
    return started
