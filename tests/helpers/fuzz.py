"""Fuzz every reader of foreign bytes: it must accept the input or refuse it.

A target draws an input, reads it, and raises if anything but the reader's own refusal results.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import Guidance, Order, Refusal
from fedproto_app.core.wire import Unusable, read_order
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.sources import load_series
from fedproto_app.server.checkpoint import (
    DIGESTS,
    MODEL,
    SERVER,
    STRATEGY,
    Checkpoint,
    newest_checkpoint,
    write_checkpoint,
)
from fedproto_app.server.replies import MOST_SAMPLES, read_roster, received_bytes
from fedproto_app.settings import DataSettings
from tests.helpers.messages import SAMPLES, message_of, order_message, read, roster_message
from tests.helpers.reported import fields_of
from tests.helpers.spoilt import changed, spoilt, spoilt_content

Target = Callable[[st.DataObject], None]
EXAMPLES = 100  # of a target, before the next has its turn


def replies(data: st.DataObject) -> None:
    """A reply's valid parts are used, and its invalid parts are refused by name."""
    message = message_of()
    message.content = data.draw(spoilt_content(message.content, fields_of(message)))
    assert received_bytes(message) >= 0
    reply, refusals = read(message)
    assert all(isinstance(refusal, Refusal) for refusal in refusals)
    assert reply is not None or refusals
    if reply is not None:
        assert set(reply.names) <= SAMPLES.keys()
        assert all(np.isfinite(array).all() for array in reply.arrays.values())
        columns = [*reply.losses.values(), *reply.metrics.values()]
        assert all(math.isfinite(value) for column in columns for value in column)


def rosters(data: st.DataObject) -> None:
    """A roster has clients with possible counts, or it is refused as unusable."""
    message = roster_message()
    message.content = data.draw(spoilt_content(message.content, fields_of(message)))
    try:
        roster = read_roster(message, multiple=10)
    except Unusable:
        return
    assert all(0 < count <= MOST_SAMPLES for count in roster.samples.values())


def orders(data: st.DataObject) -> None:
    """A node reads an order with arrays of numbers, or none at all."""
    arrays = {"w": np.ones((2, 3), np.float32), "b": np.zeros((), np.float32)}
    message = order_message(Order("run", "token", 1, ["a"], guidance=Guidance(arrays, ["a"])))
    message.content = data.draw(spoilt_content(message.content, fields_of(message)))
    try:
        order = read_order(message)
    except Unusable:
        return
    assert all(array.dtype.kind in "fiub" for array in order.guidance.arrays.values())


def checkpoints(data: st.DataObject) -> None:
    """A checkpoint is complete or the previous one is used, even if its digests are right."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for number in (1, 2):
            write_checkpoint(
                root,
                Checkpoint(
                    number,
                    "token",
                    model={"w": np.ones((2, 2), np.float32)},
                    strategy={"names": np.array(["a", "b"]), "rows": np.arange(6.0)},
                    federation={"facts": [["a", "n", {"samples": 10}]]},
                ),
            )
        newest = root / "round-000002"
        name = data.draw(st.sampled_from([MODEL, STRATEGY, SERVER, DIGESTS]))
        good = (newest / name).read_bytes()
        as_json = changed(json.loads(good)) if name in (SERVER, DIGESTS) else st.nothing()
        bad = data.draw(spoilt(good) | as_json)
        (newest / name).write_bytes(bad)
        if name != DIGESTS and data.draw(st.booleans()):
            digests = json.loads((newest / DIGESTS).read_text())
            (newest / DIGESTS).write_text(json.dumps(digests | {name: sha256(bad).hexdigest()}))
        checkpoint, faults = newest_checkpoint(root)
    assert checkpoint is not None
    assert checkpoint.server_round == 1 or not faults
    assert len(faults) <= 1


def _npz(**arrays: Any) -> bytes:
    file = BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


_WIDE = ["time,a,b", *(f"2024-01-{1 + h // 24:02} {h % 24:02}:00,{h},{2 * h}" for h in range(60))]
FILES: dict[str, tuple[Callable[[DataSettings], Any], bytes]] = {
    "wide-csv": (load_series, "\n".join(_WIDE).encode()),
    "npz": (load_series, _npz(a=np.arange(60.0), b=np.arange(60.0))),
    "image-npz": (
        load_pool,
        _npz(
            train_images=np.zeros((4, 4, 4), np.uint8),
            train_labels=np.array([0, 1, 0, 1]),
            test_images=np.zeros((2, 4, 4), np.uint8),
            test_labels=np.array([0, 1]),
        ),
    ),
    "sequence-npz": (
        load_sequences,
        _npz(
            points=np.zeros((6, 3), np.float32), offsets=np.array([0, 3, 6]), label=np.array([0, 1])
        ),
    ),
}


def files(data: st.DataObject) -> None:
    """A site's file is read, or refused with a message for its owner."""
    source = data.draw(st.sampled_from(sorted(FILES)))
    load, good = FILES[source]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "file"
        path.write_bytes(data.draw(spoilt(good)))
        try:
            load(DataSettings(source=source, path=str(path)))
        except DataError:
            return


TARGETS: dict[str, Target] = {
    function.__name__: function for function in (replies, rosters, orders, checkpoints, files)
}


def fuzz(target: Target, seconds: float, seed: int) -> int:
    """Run the target for so many seconds, and return how many inputs the seed drew."""
    tried, end = 0, time.monotonic() + seconds

    def counting(data: st.DataObject) -> None:
        nonlocal tried
        tried += 1
        target(data)

    while time.monotonic() < end:
        test = hypothesis.given(st.data())(counting)
        configured = hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.seed(seed)(configured(test))()
        seed += 1
    return tried
