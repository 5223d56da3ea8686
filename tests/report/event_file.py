"""Reads TensorBoard's event files, with every checksum: records by length, crc32c, content, crc32c.

By the format's description (tensorflow/core/lib/io/record_writer.h), because tensorboard is a large
program to install for a reader of forty lines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed


def events(folder: Path) -> list[Any]:
    """Return the events of all files in the folder, in the order of their names."""
    from tensorboardX.proto.event_pb2 import Event

    files = sorted(folder.glob("events.out.tfevents.*"))
    return [Event.FromString(record) for file in files for record in _records(file.read_bytes())]


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the scalars by tag and step."""
    by_tag: dict[str, dict[int, float]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                by_tag.setdefault(value.tag, {})[event.step] = value.simple_value
    return by_tag


def _records(content: bytes) -> Iterator[bytes]:
    while content:
        length, check = struct.unpack("<QI", content[:12])
        assert check == masked_crc(content[:8])
        record, check = content[12 : 12 + length], content[12 + length : 16 + length]
        assert struct.unpack("<I", check)[0] == masked_crc(record)
        yield record
        content = content[16 + length :]


def masked_crc(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
