"""Files with a node's frozen encoder and the vectors that it computes from clients' sequences.

    encoder.safetensors
    c-<client>/vectors.safetensors

Both can be computed again, so a damaged file counts as missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedproto_app.core.whole_file import write_whole

ENCODER_FILE, VECTORS_FILE = "encoder.safetensors", "vectors.safetensors"

_log = logging.getLogger(__name__)


class EncoderFiles:
    """The encoder and the vectors in a node's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_encoder(self, tensors: Mapping[str, Tensor]) -> None:
        """Store the encoder that the node's clients share from now on."""
        _write(self._folder / ENCODER_FILE, tensors)

    def read_encoder(self) -> dict[str, Tensor]:
        """Return the last encoder, empty if none can be read."""
        return _read(self._folder / ENCODER_FILE)

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None:
        """Store the client's vectors [n, D], computed by the encoder with this digest."""
        _write(self._folder / file_name(client) / VECTORS_FILE, {digest: vectors})

    def read_vectors(self, client: str, digest: str) -> Tensor | None:
        """Return the vectors computed by the encoder with this digest, or None."""
        return _read(self._folder / file_name(client) / VECTORS_FILE).get(digest)


def file_name(client: str) -> str:
    """Return a file name without path separators; long names end in their hash."""
    quoted = "c-" + quote(client, safe=" +=@,")
    if len(quoted) <= 120:
        return quoted
    return f"{quoted[:80]}-{sha256(client.encode()).hexdigest()[:16]}"


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = save({name: value.cpu().contiguous() for name, value in tensors.items()})
    write_whole(path, content, f".{os.getpid()}.new")


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        _log.warning("%s is damaged (%s) and will be written again", path, error)
        return {}
