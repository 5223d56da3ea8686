"""Starts a SuperLink so that sites reach one port, and there only what nodes need.

    python -m fedproto_app.ops.fleet --sites 0.0.0.0:9092 --users 127.0.0.1:8000 \\
        --ca ca.crt --certificate server.pem --key server.key -- FLAGS OF flower-superlink

Whoever reaches the users' port may submit runs, without a password, so sites must not reach it. Up
to version 1.39 Flower has a port of their own for SuperNodes, which speak gRPC. From 1.40 on they
speak HTTP, on the users' port. There this program listens at the sites' port and passes on calls of
the Fleet API, /v1/fleet/..., and no others. This module knows the difference; nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

GRPC = tuple(map(int, version("flwr").split(".")[:2])) < (1, 40)

# Flower cuts what it sends into parts of at most 20 MB.
LARGEST_BODY = 64 * 2**20

_PREFIX = "/v1/fleet/"
_CALL = re.compile("[a-z-]+")
_START_DEADLINE = 60.0  # seconds until the SuperLink must answer
_CALL_DEADLINE = 120.0  # seconds without a byte from the SuperLink
_IDLE = 75.0  # seconds that a node's unused connection stays open; nodes close theirs earlier
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the SuperLink, or start it and listen for the nodes until either ends."""
    options = _parser().parse_args(arguments)
    host, _, port = options.users.rpartition(":")
    command = [
        *(_program(), "--host", host, "--port", port),
        *("--ssl-ca-certfile", options.ca, "--ssl-certfile", options.certificate),
        *("--ssl-keyfile", options.key, *options.flags),
    ]
    if GRPC:
        os.execv(command[0], [*command, "--fleet-api-address", options.sites])
    trust = ssl.create_default_context(cafile=options.ca)
    trust.check_hostname = False  # this machine asks itself, by an address without a name
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of finally
    superlink = subprocess.Popen(command)
    try:
        asyncio.run(_serve(options, trust, superlink))
    finally:
        superlink.terminate()
        try:
            superlink.wait(timeout=10)
        except subprocess.TimeoutExpired:
            superlink.kill()
    sys.exit(superlink.returncode)


def _program() -> str:
    """Return the program of the Flower that this Python imports, else the one on the path."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return shutil.which("flower-superlink", path=path) or "flower-superlink"


def fleet_app(superlink: httpx.AsyncClient) -> Starlette:
    """Return the ASGI application that passes calls of the Fleet API on to a SuperLink.

    A call with another path gets the status 404, one that is not a POST 405, a body without length
    411, one that is longer than `LARGEST_BODY` 413. Nodes repeat a call that gets a 503, which says
    that the SuperLink does not answer.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    async def forward(request: Request) -> Response:
        name = request.path_params["call"]
        if not _CALL.fullmatch(name):
            return PlainTextResponse("Not found.", 404)
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            return PlainTextResponse("The request must state its length.", 411)
        if int(length) > LARGEST_BODY:
            return PlainTextResponse(f"A request may have {LARGEST_BODY} bytes.", 413)
        call = superlink.build_request(
            "POST", _PREFIX + name, headers=_passed(request.headers), content=request.stream()
        )
        try:
            answer = await superlink.send(call, stream=True)
        except httpx.TransportError:
            return PlainTextResponse("The SuperLink does not answer.", 503)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            _passed(answer.headers),
            background=BackgroundTask(answer.aclose),
        )

    return Starlette(routes=[Route(_PREFIX + "{call}", forward, methods=["POST"])])


async def _serve(
    options: argparse.Namespace, trust: ssl.SSLContext, superlink: subprocess.Popen[bytes]
) -> None:
    """Wait until the SuperLink answers; pass on the nodes' calls until it or this program ends."""
    import httpx
    import uvicorn

    client = httpx.AsyncClient(
        base_url=f"https://{options.users.replace('0.0.0.0', '127.0.0.1')}",
        verify=trust,
        timeout=httpx.Timeout(_CALL_DEADLINE, pool=None),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),  # the SuperLink's is 5 s
        trust_env=False,
    )
    host, _, port = options.sites.rpartition(":")
    server = uvicorn.Server(
        uvicorn.Config(
            fleet_app(client),
            host=host,
            port=int(port),
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
            timeout_keep_alive=int(_IDLE),
            timeout_graceful_shutdown=5,
            log_level="warning",
        )
    )

    async def watch() -> None:
        while superlink.poll() is None:
            await asyncio.sleep(0.2)
        server.should_exit = True

    async with client:
        if not await _answers(client, superlink):
            raise SystemExit(f"flower-superlink did not answer within {_START_DEADLINE:.0f} s")
        watcher = asyncio.create_task(watch())
        await server.serve()
        watcher.cancel()


async def _answers(client: httpx.AsyncClient, superlink: subprocess.Popen[bytes]) -> bool:
    import httpx

    end = asyncio.get_running_loop().time() + _START_DEADLINE
    while asyncio.get_running_loop().time() < end and superlink.poll() is None:
        try:
            if (await client.get("/health")).is_success:
                return True
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    return superlink.poll() is not None  # it has ended: the watcher sees that


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without those that concern one connection."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedproto_app.ops.fleet", description=__doc__)
    parser.add_argument("--sites", required=True, help="HOST:PORT that SuperNodes connect to")
    parser.add_argument("--users", required=True, help="HOST:PORT for runs and registrations")
    parser.add_argument("--ca", required=True, help="the certificate of the authority")
    parser.add_argument("--certificate", required=True, help="the server's certificate")
    parser.add_argument("--key", required=True, help="the server's private key")
    parser.add_argument("flags", nargs="*", help="more flags of flower-superlink, after --")
    return parser


if __name__ == "__main__":
    main()
