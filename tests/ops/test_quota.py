"""What a node sends is counted before a SuperLink stores it, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedproto_app.ops import fleet
from fedproto_app.ops.fleet import fleet_app, limited_servicer
from fedproto_app.ops.quota import Quota

REPLY = PushMessagesRequest(
    node=Node(node_id=7), messages_list=[Message(metadata=Metadata(run_id=5, message_id="m"))]
)
WITHDRAWAL = ConfirmMessageReceivedRequest(node=Node(node_id=7), run_id=5, message_object_id="m")


def test_bytes_are_counted_for_each_node_until_it_draws_an_order() -> None:
    quota = Quota(10)
    assert quota.spend(1, 6)
    assert not quota.spend(1, 5)
    assert quota.spend(1, 4)  # a refused part does not count
    assert quota.spend(2, 10)
    quota.refund(1, 4)
    assert not quota.spend(1, 5)
    quota.renew(1)
    assert quota.spend(1, 10)
    assert not quota.spend(2, 1)
    quota.refund(1, 10)
    quota.refund(2, 10)
    assert vars(quota)["_bytes"] == {}  # strangers, too, leave nothing behind


def test_a_begun_reply_is_withdrawn_once_and_not_after_the_next_order() -> None:
    quota = Quota(10)
    quota.begin(1, REPLY)
    assert [quota.withdrawal(node) for node in (1, 1, 2)] == [WITHDRAWAL, None, None]
    quota.begin(1, REPLY)
    quota.renew(1)
    assert quota.withdrawal(1) is None


class Site:
    """A node at the sites' port of a SuperLink.

    status: what the SuperLink answers. It stores only what it answers with 200. orders: whether it
    has an order for the node.
    """

    def __init__(self, limit: int) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.status, self.orders = 200, True
        self.quota = Quota(limit)
        private, public = generate_key_pairs()
        time = datetime.now(UTC).isoformat()
        self.headers = {
            "flwr-public-key": b64encode(public_key_to_bytes(public)).decode(),
            "flwr-timestamp": time,
            "flwr-signature": b64encode(sign_message(private, time.encode())).decode(),
        }

    async def _answer(self, request: Request) -> Response:
        call = request.path_params["call"]
        if self.status == 200:
            self.stored.append((call, await request.body()))
        order = PullMessagesResponse(messages_list=[Message()] if self.orders else [])
        return Response(order.SerializeToString() if call == "pull-messages" else b"", self.status)

    def ask(self, call: str, content: bytes = b"", **headers: str) -> int:
        async def send() -> int:
            link = Starlette(routes=[Route("/v1/fleet/{call}", self._answer, methods=["POST"])])
            transport = httpx.ASGITransport(link)
            app = fleet_app(
                httpx.AsyncClient(transport=transport, base_url="https://l"), self.quota
            )
            site = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://f")
            signed = self.headers | {n.replace("_", "-"): text for n, text in headers.items()}
            encoded = {name: text.encode("latin-1") for name, text in signed.items()}
            answer = await site.post(f"/v1/fleet/{call}", content=content, headers=encoded)
            return answer.status_code

        return asyncio.run(send())


def test_over_http_a_large_reply_is_refused_and_what_is_stored_of_it_withdrawn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = REPLY.SerializeToString()
    site = Site(len(start) + 10)
    assert site.ask("push-messages", start) == 200
    assert [site.ask("push-object", b"12345") for _ in range(3)] == [200, 200, 413]
    assert site.ask("push-object", b"1") == 413
    assert site.stored[1:] == [
        *[("push-object", b"12345")] * 2,
        ("confirm-message-received", WITHDRAWAL.SerializeToString()),
    ]
    assert capsys.readouterr().err.startswith("node 7 of run 5: a reply may have 0 MB in all; ")
    site.orders = False
    assert site.ask("pull-messages") == 200
    assert site.ask("push-object", b"1") == 413
    site.orders = True
    assert site.ask("pull-messages") == 200
    assert site.ask("push-object", b"1") == 200


def test_over_http_only_what_is_stored_counts() -> None:
    site = Site(10)
    site.status = 401  # the key is not registered
    assert [site.ask("push-object", b"1" * 10) for _ in range(2)] == [401, 401]
    site.status = 200
    assert site.ask("push-object", b"1" * 10) == 200


@pytest.mark.parametrize("name", ["flwr_public_key", "flwr_timestamp", "flwr_signature"])
@pytest.mark.parametrize("text", ["", "ä", "AAAA", "not base64"])
def test_over_http_nobody_spends_the_quota_of_another(name: str, text: str) -> None:
    site = Site(10)
    assert site.ask("push-object", b"1" * 9, **{name: text}) == 401
    assert site.stored == []
    assert site.ask("push-object", b"1" * 10) == 200


class Aborted(Exception):
    pass


class Servicer:
    """In place of Flower's, with a list of what it has stored."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def PullMessages(self, request: Any, context: Any) -> Any:
        return PullMessagesResponse(messages_list=[Message()] if request.orders else [])

    def PushMessages(self, request: Any, context: Any) -> None:
        self.stored.append(request)

    PushObject = ConfirmMessageReceived = PushMessages


def test_over_grpc_a_large_reply_is_refused_and_what_is_stored_of_it_withdrawn() -> None:
    def abort(code: grpc.StatusCode, text: str) -> None:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED  # at others nodes try again, or end
        raise Aborted(text)

    context, node = SimpleNamespace(abort=abort), Node(node_id=7)
    quota = Quota(REPLY.ByteSize() + 10)
    servicer = limited_servicer(Servicer, quota)()
    part = SimpleNamespace(node=node, ByteSize=lambda: 5)
    servicer.PushMessages(REPLY, context)
    servicer.PushObject(part, context)
    servicer.PushObject(part, context)
    for orders in (False, False):  # refused again, and withdrawn once
        with pytest.raises(Aborted, match=r"0 MB in all; the server's --largest-reply"):
            servicer.PushObject(part, context)
        servicer.PullMessages(SimpleNamespace(node=node, orders=orders), context)
    assert servicer.stored == [REPLY, part, part, WITHDRAWAL]
    servicer.PullMessages(SimpleNamespace(node=node, orders=True), context)
    servicer.PushObject(part, context)
    assert servicer.stored[4:] == [part]


def test_over_grpc_what_flower_refuses_to_store_is_not_counted() -> None:
    class Refusing(Servicer):
        refuses = True

        def PushObject(self, request: Any, context: Any) -> None:
            if self.refuses:
                raise Aborted("the run has ended")
            super().PushObject(request, context)

    servicer = limited_servicer(Refusing, Quota(5))()
    part = SimpleNamespace(node=Node(node_id=7), ByteSize=lambda: 5)
    for _ in range(3):
        with pytest.raises(Aborted, match="the run has ended"):
            servicer.PushObject(part, None)
    servicer.refuses = False
    servicer.PushObject(part, None)
    assert servicer.stored == [part]


FILES = [f"--{name}={__file__}" for name in ("ca", "certificate", "key")]
WORDS = ["--sites=127.0.0.1:1", "--users=127.0.0.1:2", *FILES]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1 GB", "12345678"])
@pytest.mark.parametrize("by_flag", [True, False])
def test_the_largest_reply_is_a_number_of_megabytes(
    text: str, by_flag: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not by_flag:
        monkeypatch.setenv("FEDPROTO_LARGEST_REPLY_MB", text)
    with pytest.raises(SystemExit):
        fleet.main([*WORDS, *([f"--largest-reply={text}"] if by_flag else [])])
    expected = f"--largest-reply: {text!r}: must be a whole number of MB, at least 1"
    assert expected in capsys.readouterr().err


def test_another_flower_with_grpc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "version", lambda _: "1.39.1")
    with pytest.raises(SystemExit, match=r"error: flwr 1\.39\.1: must be 1\.39\.0, or 1\.40 or"):
        fleet.main(WORDS)
