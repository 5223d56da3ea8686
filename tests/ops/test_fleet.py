"""The sites' port of a SuperLink that speaks HTTP passes on the Fleet API and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import resource
import sqlite3
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import httpx
import pytest
import uvicorn
from flwr.supercore import sql_mixin
from flwr.supercore.error import FlowerError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedproto_app.ops import fleet
from fedproto_app.ops.fleet import LARGEST_BODY, Address, fleet_app, read_address, server_config
from fedproto_app.ops.keys import make_keys
from fedproto_app.ops.quota import Quota
from fedproto_app.ops.superlink import free_port


def ask(
    path: str,
    *,
    method: str = "POST",
    superlink: httpx.AsyncBaseTransport | None = None,
    **options: object,
) -> httpx.Response:
    """Return the answer of the sites' port. By default the SuperLink says what it was asked."""

    async def call() -> httpx.Response:
        client = httpx.AsyncClient(transport=superlink or echo(), base_url="https://link")
        app = fleet_app(client, Quota(2**30))
        site = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://fleet")
        return await site.request(method, path, **options)  # type: ignore[arg-type]

    return asyncio.run(call())


def echo() -> httpx.ASGITransport:
    async def answer(request: Request) -> Response:
        signature = request.headers.get("flwr-signature", "")
        body = (await request.body()).decode()
        status = 401 if signature == "wrong" else 200
        return PlainTextResponse(
            f"{request.method} {request.url.path} {signature} {body}", status, {"x-version": "1.41"}
        )

    return httpx.ASGITransport(Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])]))


def test_a_call_of_a_node_passes_both_ways() -> None:
    answer = ask("/v1/fleet/get-run", content=b"reply", headers={"flwr-signature": "abc"})
    assert answer.text == "POST /v1/fleet/get-run abc reply"
    assert answer.headers["x-version"] == "1.41"
    refused = ask("/v1/fleet/pull-messages", content=b"", headers={"flwr-signature": "wrong"})
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
        "/v1/fleet/pull-messages/",
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
    for length in ({"content-length": "9" * 5000}, {"transfer-encoding": "chunked"}):
        headers = {"content-length": "0", **length}
        assert ask("/v1/fleet/push-object", content=b"", headers=headers).status_code == 411


@pytest.mark.parametrize(
    ("seconds", "accepted"),
    [(-2 * 86_400, False), (-310, False), (-300, True), (0, True), (4, True), (6, False)],
)
def test_a_node_whose_clock_is_wrong_is_refused_with_both_times(
    seconds: float, accepted: bool
) -> None:
    time = datetime.now(UTC) + timedelta(seconds=seconds)
    headers = {"flwr-timestamp": time.isoformat()}
    over_http = ask("/v1/fleet/activate-node", headers=headers)

    class Flowers:
        def intercept_service(self, continuation: object, details: object) -> str:
            return "passed on"

    interceptor = fleet.telling_of_clocks(Flowers)()
    details = SimpleNamespace(invocation_metadata=list(headers.items()))
    over_grpc = interceptor.intercept_service(None, details)
    if accepted:
        assert over_http.status_code == 200
        assert over_grpc == "passed on"
        return
    assert over_http.status_code == 412
    context = Mock()
    over_grpc.unary_unary(None, context)
    status, grpc_message = context.abort.call_args.args
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    error = FlowerError.from_json(over_http.text)  # as a SuperNode reads it
    assert error is not None
    for message in (grpc_message, error.message):
        assert message.startswith(f"this node's clock says {time:%Y-%m-%d %H:%M:%S}, and the ")
        assert f"{datetime.now(UTC):%Y-%m-%d}" in message


def test_a_superlink_that_does_not_answer_is_named_so_that_nodes_try_again() -> None:
    def no_connection(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    absent = httpx.MockTransport(no_connection)
    assert ask("/v1/fleet/pull-messages", content=b"", superlink=absent).status_code == 503


def test_headers_that_only_a_proxy_may_set_are_dropped_and_repeated_headers_stay() -> None:
    async def headers(request: Request) -> Response:
        response = PlainTextResponse(" ".join(request.headers.keys()))
        response.raw_headers += [(b"x-a", b"1"), (b"x-a", b"2"), (b"connection", b"x-a")]
        return response

    superlink = Starlette(routes=[Route("/{path:path}", headers, methods=["POST"])])
    answer = ask(
        "/v1/fleet/get-run",
        superlink=httpx.ASGITransport(superlink),
        content=b"",
        headers=[
            *(("flwr-signature", "a"), ("flwr-signature", "b"), ("content-type", "x/y")),
            *(("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=10.0.0.1"), ("cookie", "a")),
        ],
    )
    passed = [name for name in answer.text.split() if name not in ("host", "user-agent")]
    assert sorted(set(passed)) == [
        *("accept", "accept-encoding", "connection", "content-length", "content-type"),
        "flwr-signature",
    ]
    assert passed.count("flwr-signature") == 2
    assert answer.headers.get_list("x-a") == ["1", "2"]
    assert "connection" not in answer.headers


def test_a_slow_node_is_asked_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_CALL_DEADLINE", 0.2)

    async def slow() -> AsyncIterator[bytes]:
        yield b"1"
        await asyncio.sleep(9)

    headers = {"content-length": "2"}
    assert ask("/v1/fleet/pull-object", content=slow(), headers=headers).status_code == 503


def test_only_so_many_bytes_are_on_the_way_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LARGEST_SUM", 10)

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.2)
        return PlainTextResponse("")

    async def three_at_once() -> list[int]:
        link = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
        superlink = httpx.AsyncClient(transport=httpx.ASGITransport(link), base_url="https://link")
        app = fleet_app(superlink, Quota(2**30))
        site = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://fleet")
        calls = [site.post("/v1/fleet/get-run", content=b"12345") for _ in range(3)]
        codes = [answer.status_code for answer in await asyncio.gather(*calls)]
        return [*codes, (await site.post("/v1/fleet/get-run", content=b"12345")).status_code]

    assert asyncio.run(three_at_once()) == [200, 200, 503, 200]


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def at_the_port(
    folder: Path, connections: int, *talks: Talk, superlink: httpx.AsyncBaseTransport | None = None
) -> list[bytes]:
    """Return what each talk over a TLS connection of its own returns. They run one by one, and the
    connections stay open until the end."""
    keys = folder / "keys"
    make_keys(keys, ["127.0.0.1"], [])

    async def serve() -> list[bytes]:
        client = httpx.AsyncClient(transport=superlink or echo(), base_url="https://link")
        port = free_port()
        address, files = Address("127.0.0.1", port), (keys / "server.pem", keys / "server.key")
        app = fleet_app(client, Quota(2**30))
        config = server_config(app, address, *map(str, files), connections)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        trust = ssl.create_default_context(cafile=keys / "ca.crt")
        streams = [await asyncio.open_connection("127.0.0.1", port, ssl=trust) for _ in talks]
        answers = [await talk(*pair) for talk, pair in zip(talks, streams, strict=True)]
        for _, writer in streams:
            writer.transport.abort()
        server.should_exit = True
        await serving
        return answers

    return asyncio.run(asyncio.wait_for(serve(), 30))


CALL = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: fleet\r\nContent-Length: 0\r\n\r\n"


async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(CALL)
    return (await reader.readline()).rstrip()


def test_a_connection_must_bring_its_headers_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fleet, "_HEAD_DEADLINE", 2)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answered = await call(reader, writer)
        while not reader.at_eof():  # a byte now and then, and never the end of the line
            writer.write(CALL[:1])
            await asyncio.sleep(0.1)
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(999), 0.1)
        return answered

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        return await reader.read()

    assert at_the_port(tmp_path, 9, slow, silent) == [b"HTTP/1.1 200 OK", b""]


def test_further_connections_are_closed(tmp_path: Path) -> None:
    async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            return await call(reader, writer)
        except ConnectionError:
            return b""

    good = b"HTTP/1.1 200 OK"
    assert at_the_port(tmp_path, 2, call, call, closed) == [good, good, b""]


def test_an_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fleet, "_CALL_DEADLINE", 1.0)
    closed = []

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"begun"
            await asyncio.sleep(99)

        async def aclose(self) -> None:
            closed.append(self)

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        return await call(reader, writer) + await reader.read()

    endless = httpx.MockTransport(lambda request: httpx.Response(200, stream=Endless()))
    (answers,) = at_the_port(tmp_path, 9, read, superlink=endless)
    assert answers.startswith(b"HTTP/1.1 200 OK")
    assert b"begun" in answers
    assert len(closed) == 1  # the connection to the SuperLink


@pytest.mark.parametrize(
    ("text", "host", "from_here"),
    [
        ("0.0.0.0:8000", "0.0.0.0", "127.0.0.1:8000"),
        ("10.0.0.0:8000", "10.0.0.0", "10.0.0.0:8000"),
        ("superlink:8000", "superlink", "superlink:8000"),
        ("[::]:8000", "::", "[::1]:8000"),
        ("[fd00::1]:8000", "fd00::1", "[fd00::1]:8000"),
    ],
)
def test_addresses(text: str, host: str, from_here: str) -> None:
    address = read_address(text)
    assert (address, str(address)) == ((host, 8000), text)
    assert str(address.from_here) == from_here


@pytest.mark.parametrize(
    "text",
    [":8000", "8000", "host", "host:", "host:0", "host:65536", "::1:8000", "[::1]", "[x]:8000", ""],
)
def test_other_addresses_are_refused(text: str) -> None:
    """Above all one without a host, which would mean every network of the machine."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be HOST:PORT, or \[HOST\]:PORT"):
        read_address(text)


def test_files_are_looked_at_before_a_superlink_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet, "_serves_nodes_with_grpc", lambda: False)
    empty = tmp_path / "empty"
    empty.touch()
    words = ["--sites=127.0.0.1:1", "--users=127.0.0.1:2", f"--certificate={empty}"]
    with pytest.raises(SystemExit, match=rf"error: --ca {empty}: is not a certificate"):
        fleet.main([*words, f"--key={empty}", f"--ca={empty}"])
    with pytest.raises(SystemExit):
        fleet.main([*words, f"--ca={empty}", "--key=absent"])
    assert "--key: absent: cannot be read" in capsys.readouterr().err


def test_connections_fit_into_the_open_files_that_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert fleet._connections() == 412  # two files each, and a hundred for the rest
    assert limits == [(1024, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    assert fleet._connections() == fleet.MOST_CONNECTIONS


def test_calls_wait_while_others_write_to_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    fleet.be_patient()
    with closing(sqlite3.connect(tmp_path / "superlink.db")) as database:
        sql_mixin._set_sqlite_pragmas(database, None)  # as Flower does with each connection
        assert database.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
