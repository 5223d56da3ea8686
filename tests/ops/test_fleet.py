"""The sites' port of a SuperLink that speaks HTTP passes on the Fleet API and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedproto_app.ops.fleet import LARGEST_BODY, fleet_app


def ask(
    path: str,
    *,
    method: str = "POST",
    superlink: httpx.AsyncBaseTransport | None = None,
    **options: object,
) -> httpx.Response:
    """Return the answer of the sites' port; by default the SuperLink says what it was asked."""

    async def call() -> httpx.Response:
        app = fleet_app(httpx.AsyncClient(transport=superlink or echo(), base_url="https://link"))
        site = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://fleet")
        return await site.request(method, path, **options)  # type: ignore[arg-type]

    return asyncio.run(call())


def echo() -> httpx.ASGITransport:
    async def answer(request: Request) -> Response:
        signature = request.headers.get("x-signature", "")
        body = (await request.body()).decode()
        status = 401 if signature == "wrong" else 200
        return PlainTextResponse(
            f"{request.method} {request.url.path} {signature} {body}", status, {"x-version": "1.41"}
        )

    return httpx.ASGITransport(Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])]))


def test_a_call_of_a_node_passes_both_ways() -> None:
    answer = ask("/v1/fleet/push-messages", content=b"reply", headers={"x-signature": "abc"})
    assert answer.text == "POST /v1/fleet/push-messages abc reply"
    assert answer.headers["x-version"] == "1.41"
    refused = ask("/v1/fleet/pull-messages", content=b"", headers={"x-signature": "wrong"})
    assert refused.status_code == 401  # as the SuperLink said


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet/%2e%2e",
        "/v1/fleet//v1/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/V1/CONTROL/start-run",
    ],
)
def test_nothing_else_passes(path: str) -> None:
    assert ask(path, content=b"run this").status_code == 404


def test_what_no_node_sends_is_refused() -> None:
    assert ask("/v1/fleet/pull-messages", method="GET").status_code == 405

    async def without_length() -> AsyncIterator[bytes]:
        yield b"reply"

    assert ask("/v1/fleet/push-object", content=without_length()).status_code == 411
    length = {"content-length": str(LARGEST_BODY + 1)}
    assert ask("/v1/fleet/push-object", content=b"", headers=length).status_code == 413


def test_a_superlink_that_does_not_answer_is_named_so_that_nodes_try_again() -> None:
    def no_connection(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    absent = httpx.MockTransport(no_connection)
    assert ask("/v1/fleet/pull-messages", content=b"", superlink=absent).status_code == 503
