"""Strategies for the bytes, JSON, arrays and messages of broken or hostile senders."""

from __future__ import annotations

import copy
import json
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st

NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats()
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.sampled_from(["a", "mse"])
VALUES = st.recursive(
    LEAVES,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values),
)
# For headers that lie about the data.
DTYPES = ["<f4", ">f4", "<f8", "<i8", "<U3", "|O", "|V8", "<M8[s]", "<c8", "no type", "|b1"]
SIZES = st.integers(-2, 6) | st.sampled_from([10**6, 10**12, 2**31, 2**63, -(2**63), 2**70])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container in a JSON value, with each of its keys."""
    keys = range(len(value)) if isinstance(value, list) else value
    if not isinstance(value, list | dict):
        return []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@st.composite
def changed(draw: st.DrawFn, fields: Any) -> bytes:
    """Draw these fields as JSON, with up to three values changed, dropped or added, or bytes
    spoilt."""
    fields = copy.deepcopy(fields)
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(places(fields)))
        change = draw(st.sampled_from(["change", "drop", "add"]))
        if change == "change":
            container[key] = draw(VALUES)
        elif change == "drop":
            del container[key]
        elif isinstance(container, list):
            container.insert(key, draw(VALUES))
        else:
            container[draw(st.text(max_size=5))] = draw(VALUES)
        if not places(fields):
            break
    text = bytearray(json.dumps(fields).encode())
    for place, byte in draw(
        st.dictionaries(st.integers(0, 10**4), st.integers(0, 255), max_size=2)
    ).items():
        text[place % len(text)] = byte
    return bytes(text)


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """Draw these bytes with some changed, cut out, put in or repeated, or any other bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 16)))
        change = draw(st.sampled_from(["change", "cut", "put", "repeat", "end"]))
        if change == "change":
            data[start:end] = draw(st.binary(min_size=end - start, max_size=end - start))
        elif change == "cut":
            del data[start:end]
        elif change == "put":
            data[start:start] = draw(st.binary(max_size=16))
        elif change == "repeat":
            data[start:start] = data[start:end]
        else:
            del data[start:]
    return bytes(data)


@st.composite
def npy(draw: st.DrawFn) -> bytes:
    """Draw an array's file with any header."""
    file = BytesIO()
    header = {
        "descr": draw(st.sampled_from(DTYPES)),
        "fortran_order": draw(st.booleans()),
        "shape": tuple(draw(st.lists(SIZES, max_size=4))),
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + draw(st.binary(max_size=64))


RECORDS: st.SearchStrategy[Any] = st.sampled_from(
    [
        lambda: ConfigRecord({"json": "text", "x": [1, 2]}),
        lambda: ConfigRecord({"json": [b"bytes", b"twice"]}),
        lambda: ConfigRecord({"json": b"{}", "seconds": [1.0]}),
        lambda: MetricRecord({"num-examples": 10**18, "json": [0.5]}),
        lambda: ArrayRecord({"json": Array(np.ones(2, np.float32))}),
        ConfigRecord,
        ArrayRecord,
    ]
)


@st.composite
def spoilt_content(draw: st.DrawFn, good: RecordDict, fields: Any) -> RecordDict:
    """Draw a message's records with fields, arrays, or whole records spoilt. fields: the good
    message's."""
    record = ConfigRecord(dict(good.config_records["told"]))
    record["json"] = draw(changed(fields) | spoilt(bytes(record["json"])))  # type: ignore[arg-type]
    arrays = ArrayRecord(dict(good.array_records.get("arrays", ArrayRecord())))
    for name in sorted(arrays):
        change = draw(st.sampled_from(["leave", "leave", "spoil", "lie", "drop", "twice", "claim"]))
        array = arrays[name]
        if change in ("spoil", "lie"):
            data = draw(spoilt(array.data) if change == "spoil" else npy())
            arrays[name] = Array(array.dtype, array.shape, array.stype, data)
        elif change == "drop":
            del arrays[name]
        elif change == "twice":
            arrays[draw(st.text(max_size=5))] = array
        elif change == "claim":
            shape = tuple(draw(st.lists(SIZES, max_size=3)))
            arrays[name] = Array(draw(st.text(max_size=5)), shape, "other", array.data)
    records: dict[str, Any] = {"told": record, "arrays": arrays}
    if draw(st.integers(0, 4)) == 0:
        records[draw(st.sampled_from(["told", "arrays", "more"]))] = draw(RECORDS)()
    for name in ("told", "arrays"):
        if draw(st.integers(0, 9)) == 0:
            del records[name]
    return RecordDict(records)
