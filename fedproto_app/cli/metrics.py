"""``fedproto metrics``: serve the metrics of a server or a site over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def metrics(
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder that FEDPROTO_METRICS names on the server."),
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The audit log of the server or the site.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: any free port.")] = 9464,
) -> None:
    """Serve metrics over HTTP for Prometheus, until it is stopped.

    It serves each run's rounds, orders, replies, refusals, bytes, seconds,
    loss and ε, and the last hour's events from the audit log. There is no
    password, so listen only on an address that Prometheus alone can reach.

    [bold]Examples[/bold]

      fedproto metrics --folder /runs/metrics --audit /audit/audit.jsonl
      curl http://127.0.0.1:9464/metrics
    """
    from fedproto_app.ops.metrics_server import serve

    server, thread = serve(host, port, folder, audit)
    typer.echo(f"http://{host}:{server.server_port}/metrics")
    thread.join()
