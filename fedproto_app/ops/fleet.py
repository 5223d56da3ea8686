"""Start a SuperLink where sites can reach only one port, and there only what nodes need.

    python -m fedproto_app.ops.fleet --sites 0.0.0.0:9092 --users 127.0.0.1:8000 \\
        --ca ca.crt --certificate server.pem --key server.key -- FLAGS OF flower-superlink

The users' port lets anyone submit runs without a password, so sites must not reach it. Up to
version 1.39, Flower has a separate port for SuperNodes, which speak gRPC. From 1.40 on they speak
HTTP, on the users' port. With these versions, this program listens at the sites' port and passes on
calls of the Fleet API, /v1/fleet/..., and no other calls. Only this module knows the difference.

Flower stores replies of any size. Here a reply that is larger than --largest-reply is refused
before it is stored. It gets a status at which a SuperNode gives up that reply and continues.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from fedproto_app.ops.quota import LARGEST_REPLY, Quota

if TYPE_CHECKING:
    import httpx
    import uvicorn
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
    from flwr.proto.message_pb2 import PushObjectRequest
    from grpc import ServicerContext

    Push = PushMessagesRequest | PushObjectRequest
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

# Flower cuts arrays into parts of 5 MB. A node's other requests are smaller than an app, 10 MB.
LARGEST_BODY = 64 * 2**20
# The SuperLink reads a request into memory before it checks the signature.
LARGEST_SUM = 2**30  # bytes of the requests that are passed on at the same time
MOST_CONNECTIONS = 2000  # a node opens at most four

_GRPC_VERSION = "1.39.0"  # of Flower, in whose modules `_serve_with_grpc` replaces names

_PREFIX = "/v1/fleet/"
_REPLY_CALLS = ("push-messages", "push-object")
_CALL = re.compile("[a-z-]+")
_LENGTH = re.compile("[0-9]{1,12}")
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})")
_SUPERLINK = "import sys; from fedproto_app.ops import fleet; fleet.become_superlink(sys.argv[1:])"
_LONGEST_WAIT = 60_000  # milliseconds for the database
_START_DEADLINE = 300.0  # seconds until the SuperLink must answer. 60 were too few at a load of 14
_CALL_DEADLINE = 300.0  # seconds for a request and its answer, however slow the node is
_HEAD_DEADLINE = 20  # seconds for a request's path and headers. Nodes drop idle connections after 5
_BEHIND, _AHEAD = 305.0, 5.0  # seconds by which a node's signature may be behind or ahead of Flower
_TIME_HEADER = "flwr-timestamp"
# Only these headers and Flower's `flwr-…` pass. A SuperLink would believe X-Forwarded-For.
_REQUEST_HEADERS = {b"accept", b"accept-encoding", b"content-length", b"content-type"}
_HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Address(NamedTuple):
    """Where a program listens. host: a name, or an IPv4 or IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def from_here(self) -> Address:
        """This machine's address for the program, even if that listens at every address."""
        with suppress(ValueError):
            address = ip_address(self.host)
            if address.is_unspecified:
                return Address("127.0.0.1" if address.version == 4 else "::1", self.port)
        return self


def read_address(text: str) -> Address:
    """Return the address in a text such as HOST:PORT, or [HOST]:PORT for IPv6.

    A missing host is refused, because it would mean every network of the machine.
    """
    match = _ADDRESS.fullmatch(text)
    if match and 0 < (port := int(match["port"])) < 2**16:
        with suppress(ValueError):
            return Address(match["host"] or str(ip_address(match["v6"])), port)
    raise argparse.ArgumentTypeError(f"{text!r}: must be HOST:PORT, or [HOST]:PORT for IPv6")


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the SuperLink, or start one and listen for its nodes until either program ends."""
    options = _parser().parse_args(arguments)
    users: Address = options.users
    flags = [
        *("--host", users.host, "--port", str(users.port)),
        *("--ssl-ca-certfile", options.ca, "--ssl-certfile", options.certificate),
        *("--ssl-keyfile", options.key, *options.flags),
    ]
    quota = Quota(options.largest_reply * 2**20)
    if _serves_nodes_with_grpc():
        _serve_with_grpc([*flags, "--fleet-api-address", str(options.sites)], quota)
        return
    command = [sys.executable, "-c", _SUPERLINK, *flags]
    try:
        trust = ssl.create_default_context(cafile=options.ca)
    except ssl.SSLError:
        raise SystemExit(f"error: --ca {options.ca}: is not a certificate") from None
    trust.check_hostname = False  # this machine calls itself, at an address without a name
    connections = _connections()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs `finally`
    superlink = subprocess.Popen(command)
    try:
        asyncio.run(_serve(options, trust, superlink, connections, quota))
    finally:
        superlink.terminate()
        try:
            superlink.wait(timeout=10)
        except subprocess.TimeoutExpired:
            superlink.kill()
    sys.exit(superlink.returncode)


def become_superlink(flags: Sequence[str]) -> None:
    """Run Flower's SuperLink in this process."""
    be_patient()
    # The package has a function of the same name.
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    sys.argv = ["flower-superlink", *flags]
    module.flower_superlink()


def be_patient() -> None:
    """Let calls wait for the database while other calls write.

    When a run begins on a hundred nodes, they all write at the same time. Flower waits for 5 s and
    then answers "database is locked", at which a SuperNode ends.
    """
    module: Any = importlib.import_module("flwr.supercore.sql_mixin")
    module.SQLITE_PRAGMAS = (*module.SQLITE_PRAGMAS, ("busy_timeout", str(_LONGEST_WAIT)))


def _serve_with_grpc(flags: Sequence[str], quota: Quota) -> None:
    """Run the SuperLink in this process. It serves nodes with gRPC.

    Flower has no hook for the quota, so the class that answers nodes is replaced in its module.
    """
    if (installed := version("flwr")) != _GRPC_VERSION:
        raise SystemExit(
            f"error: flwr {installed}: must be {_GRPC_VERSION}, or 1.40 or newer; with other "
            "versions, the limits on what nodes send have not been tried"
        )
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    module.FleetServicer = limited_servicer(module.FleetServicer, quota)
    module.NodeAuthServerInterceptor = telling_of_clocks(module.NodeAuthServerInterceptor)
    module.GRPC_MAX_MESSAGE_LENGTH = LARGEST_BODY
    become_superlink(flags)


def limited_servicer(servicer: type, quota: Quota) -> type:
    """Return Flower's class that handles nodes' gRPC calls, with this quota for replies.

    Flower checks a node's key before it passes a call to this class.
    """
    from grpc import StatusCode

    class LimitedServicer(servicer):  # type: ignore[misc]
        def PullMessages(
            self, request: PullMessagesRequest, context: ServicerContext
        ) -> PullMessagesResponse:
            answer: PullMessagesResponse = super().PullMessages(request, context)
            if answer.messages_list:
                quota.renew(request.node.node_id)
            return answer

        def PushMessages(self, request: PushMessagesRequest, context: ServicerContext) -> object:
            answer = self._within_quota(super().PushMessages, request, context)
            quota.begin(request.node.node_id, request)
            return answer

        def PushObject(self, request: PushObjectRequest, context: ServicerContext) -> object:
            return self._within_quota(super().PushObject, request, context)

        def _within_quota(
            self,
            call: Callable[[Push, ServicerContext], object],
            request: Push,
            context: ServicerContext,
        ) -> object:
            node, size = request.node.node_id, request.ByteSize()
            if not quota.spend(node, size):
                if (reply := quota.withdrawal(node)) is not None:
                    self.ConfirmMessageReceived(reply, context)
                context.abort(StatusCode.RESOURCE_EXHAUSTED, quota.refusal)
            try:
                return call(request, context)
            except BaseException:  # Flower refused the call, and stored nothing
                quota.refund(node, size)
                raise

    return LimitedServicer


def telling_of_clocks(interceptor: type) -> type:
    """Return Flower's class that checks nodes' signatures over gRPC, with a check of clocks.

    A node whose clock is wrong is refused with a reason that names both times, which its SuperNode
    shows. Flower's own status, UNAUTHENTICATED, makes a SuperNode end with exit code 0 and no
    reason.
    """
    from grpc import (
        HandlerCallDetails,
        RpcMethodHandler,
        StatusCode,
        unary_unary_rpc_method_handler,
    )

    class TellingInterceptor(interceptor):  # type: ignore[misc]
        def intercept_service(
            self,
            continuation: Callable[[HandlerCallDetails], RpcMethodHandler],
            handler_call_details: HandlerCallDetails,
        ) -> RpcMethodHandler:
            metadata = dict(handler_call_details.invocation_metadata)
            if fault := clock_fault(metadata.get(_TIME_HEADER)):
                return unary_unary_rpc_method_handler(
                    lambda _, context: context.abort(StatusCode.FAILED_PRECONDITION, fault)
                )
            return super().intercept_service(continuation, handler_call_details)

    return TellingInterceptor


def clock_fault(signed: str | None) -> str:
    """Return what is wrong with the clock of a node that signed at this ISO time, or "".

    signed: the time according to the node.
    """
    with suppress(ValueError, TypeError):  # Flower refuses a call without a time
        node, server_time = datetime.fromisoformat(signed or ""), datetime.now(UTC)
        if not -_AHEAD < (server_time - node).total_seconds() < _BEHIND:
            return (
                f"this node's clock says {node:%Y-%m-%d %H:%M:%S}, and the server's clock says "
                f"{server_time:%Y-%m-%d %H:%M:%S} UTC. A node may be {_BEHIND:g} s behind or "
                f"{_AHEAD:g} s ahead"
            )
    return ""


def _serves_nodes_with_grpc() -> bool:
    return tuple(map(int, version("flwr").split(".")[:2])) < (1, 40)


def _connections() -> int:
    """Return how many connections of nodes are possible. Each may need another, to the SuperLink.

    This raises the limit of open files for this process and the SuperLink as far as is allowed.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    return min(MOST_CONNECTIONS, hard_limit // 2 - 100)


def fleet_app(superlink: httpx.AsyncClient, quota: Quota) -> Starlette:
    """Return the ASGI application that passes calls of the Fleet API on to a SuperLink.

    Calls that are refused get these statuses: 404 for another path, 405 for a call that is not a
    POST, 411 for a body without length, 413 for a body that is longer than `LARGEST_BODY` or
    exceeds the quota of its node, 401 for a part of a reply that is not signed, and 412 for a node
    whose clock is wrong. A call gets 503 if the SuperLink does not answer, if too much is on the
    way to it, or if the node was too slow. Nodes repeat such a call.
    """
    import httpx
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    class Answer(StreamingResponse):
        """The SuperLink's answer on its way to the node."""

        def __init__(self, answer: httpx.Response, deadline: float) -> None:
            super().__init__(answer.aiter_raw(), answer.status_code)
            headers = [(name.lower(), value) for name, value in answer.headers.raw]
            self.raw_headers = [header for header in headers if header[0] not in _HOP_BY_HOP]
            self._answer, self._deadline = answer, deadline

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                # At the deadline the answer stays incomplete, and uvicorn closes the connection.
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._deadline):
                        await super().__call__(scope, receive, send)
            finally:
                await self._answer.aclose()

    on_the_way = 0  # bytes

    async def forward(request: Request) -> Response:
        nonlocal on_the_way
        name, text = request.path_params["call"], request.headers.get("content-length", "")
        if not _CALL.fullmatch(name):
            return PlainTextResponse("Not found.", 404)
        if not _LENGTH.fullmatch(text) or "transfer-encoding" in request.headers:
            return PlainTextResponse("The request must state its length.", 411)
        if (length := int(text)) > LARGEST_BODY:
            return PlainTextResponse(f"A request may have {LARGEST_BODY} bytes.", 413)
        if on_the_way + length > LARGEST_SUM:
            return PlainTextResponse("Too many requests are on the way.", 503)
        if fault := clock_fault(request.headers.get(_TIME_HEADER)):
            return JSONResponse({"code": 412, "detail": fault}, 412)
        headers = [
            header
            for header in request.headers.raw
            if header[0] in _REQUEST_HEADERS or header[0].startswith(b"flwr-")
        ]
        deadline = asyncio.get_running_loop().time() + _CALL_DEADLINE
        node, stored = None, False
        if name in _REPLY_CALLS:
            if (node := _signer(request.headers)) is None:
                return PlainTextResponse("The signature is wrong.", 401)
            if not quota.spend(node, length):
                return await refuse(request, node, headers, deadline)
        on_the_way += length
        try:
            async with asyncio.timeout_at(deadline):
                body = await request.body() if name == "push-messages" else b""
                content = body or request.stream()
                call = superlink.build_request(
                    "POST", _PREFIX + name, headers=headers, content=content
                )
                answer = await superlink.send(call, stream=True)
            stored = answer.is_success
        except httpx.TransportError:
            return PlainTextResponse("The SuperLink does not answer.", 503)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("The request took too long.", 503)
        finally:
            on_the_way -= length
            if node is not None and not stored:
                quota.refund(node, length)
        if name == "push-messages" and stored and node is not None:
            quota.begin(node, PushMessagesRequest.FromString(body))
        # An answer without an order is empty.
        has_order = stored and answer.headers.get("content-length", "0") != "0"
        if name == "pull-messages" and has_order and (signer := _signer(request.headers)):
            quota.renew(signer)
        return Answer(answer, deadline)

    async def refuse(
        request: Request, node: bytes, headers: list[tuple[bytes, bytes]], deadline: float
    ) -> Response:
        with suppress(TimeoutError, ClientDisconnect, httpx.TransportError):
            async with asyncio.timeout_at(deadline):
                if (reply := quota.withdrawal(node)) is not None:
                    await superlink.post(
                        f"{_PREFIX}confirm-message-received",
                        headers=[header for header in headers if header[0] != b"content-length"],
                        content=reply.SerializeToString(),
                    )
                # If the body is not read, a node takes the connection for lost and tries again.
                async for _ in request.stream():
                    pass
        return PlainTextResponse(quota.refusal, 413)

    app = Starlette(routes=[Route(_PREFIX + "{call}", forward, methods=["POST"])])
    app.router.redirect_slashes = False
    return app


def _signer(headers: Mapping[str, str]) -> bytes | None:
    """Return the public key whose owner signed a call, or None if the signature is not valid.

    The SuperLink checks whether the node is registered and whether the signature is fresh.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        key = b64decode(headers["flwr-public-key"], validate=True)
        signature = b64decode(headers["flwr-signature"], validate=True)
        signed = headers["flwr-timestamp"].encode("ascii")
        return key if verify_signature(bytes_to_public_key(key), signed, signature) else None
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        return None  # also for keys of other kinds, which cannot verify such a signature


def server_config(
    app: Starlette, address: Address, certificate: str, key: str, connections: int
) -> uvicorn.Config:
    """Return the configuration of the sites' port: TLS, and a limit on the number of connections.

    A connection is closed if it does not send a request's path and headers within a deadline. The
    deadline counts from the start of the connection, or from the end of the previous answer.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol  # bounds the headers' length

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.abort()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

        def data_received(self, data: bytes) -> None:
            # Unlike uvicorn's method, this lets the timer run until the headers are complete.
            self.conn.receive_data(data)
            self.handle_events()

    return uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        http=Connection,
        ws="none",
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_HEAD_DEADLINE,
        timeout_graceful_shutdown=5,
        log_level="error",  # warnings would be about requests that anybody can send
    )


async def _serve(
    options: argparse.Namespace,
    trust: ssl.SSLContext,
    superlink: subprocess.Popen[bytes],
    connections: int,
    quota: Quota,
) -> None:
    """Wait until the SuperLink answers. Then pass on the nodes' calls until either program ends."""
    import httpx
    import uvicorn

    client = httpx.AsyncClient(
        base_url=f"https://{options.users.from_here}",
        verify=trust,
        timeout=None,  # there is one deadline for a whole call
        limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),  # the SuperLink's is 5 s
        trust_env=False,
    )

    async def watch() -> None:
        while superlink.poll() is None:
            await asyncio.sleep(0.2)
        server.should_exit = True

    async with client:
        await _until_it_answers(client, superlink)
        app = fleet_app(client, quota)
        server = uvicorn.Server(
            server_config(app, options.sites, options.certificate, options.key, connections)
        )
        watcher = asyncio.create_task(watch())
        await server.serve()
        watcher.cancel()


async def _until_it_answers(client: httpx.AsyncClient, superlink: subprocess.Popen[bytes]) -> None:
    import httpx

    end = asyncio.get_running_loop().time() + _START_DEADLINE
    while superlink.poll() is None:
        with suppress(httpx.TransportError):
            if (await client.get("/health", timeout=2.0)).is_success:
                return
        if asyncio.get_running_loop().time() > end:
            raise SystemExit(f"flower-superlink did not answer within {_START_DEADLINE:.0f} s")
        await asyncio.sleep(0.2)
    raise SystemExit(superlink.returncode)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedproto_app.ops.fleet", description=__doc__)
    for flag, purpose in (
        ("--sites", "HOST:PORT to which SuperNodes connect"),
        ("--users", "HOST:PORT for runs and registrations"),
    ):
        parser.add_argument(flag, required=True, type=read_address, help=purpose)
    for flag, purpose in (
        ("--ca", "the certificate of the certificate authority"),
        ("--certificate", "the server's certificate"),
        ("--key", "the server's private key"),
    ):
        parser.add_argument(flag, required=True, type=_readable, help=purpose)
    parser.add_argument(
        "--largest-reply",
        type=_megabytes,
        metavar="MB",
        default=os.environ.get("FEDPROTO_LARGEST_REPLY_MB") or str(LARGEST_REPLY),
        help="the largest reply of a node to an order, in MB of 2^20 bytes; by default the value "
        f"of FEDPROTO_LARGEST_REPLY_MB, or else {LARGEST_REPLY}",
    )
    parser.add_argument("flags", nargs="*", help="more flags of flower-superlink, after --")
    return parser


def _readable(path: str) -> str:
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"{path}: cannot be read")
    return path


def _megabytes(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,6}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of MB, at least 1")
    return int(text)


if __name__ == "__main__":
    main()
