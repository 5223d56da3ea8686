"""Blocks on a disk: that cannot be opened, that go while they are, that power may fail under."""

from __future__ import annotations

import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedproto_app.core.errors import FedProtoError
from fedproto_app.node.blocks import Row, read_block, write_block, write_tensors
from fedproto_app.node.store import ClientStore
from tests.node.stored import state, state_of


def test_files_that_cannot_be_opened_just_now_are_not_damaged(tmp_path: Path) -> None:
    """No states are lost because a node has too many files open."""
    ClientStore(tmp_path).write_states(["a", "b"], 1, state(1, clients=2))
    [block] = tmp_path.glob("state-*")
    store = ClientStore(tmp_path)
    for reader in (partial(read_block, block), partial(state_of, store, "a", upto=1)):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises((FedProtoError, OSError), match="Too many open files"):
                reader()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert state_of(store, "a", upto=1) == 1


def test_a_block_may_go_between_any_two_steps_of_its_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors opens a file twice for torch: for the header, then for the values."""
    write = partial(write_block, tmp_path, "state", [Row("a", 1, 1)], state(1), writer=0)
    from_file = torch.UntypedStorage.from_file

    def gone(filename: str, *args: Any, **kwargs: Any) -> Any:
        Path(filename).unlink()
        return from_file(filename, *args, **kwargs)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", gone)
    assert read_block(write(number=1).path).rows == [Row("a", 1, 1)]
    with pytest.raises(FileNotFoundError):
        write(number=2).tensors()


def test_a_durable_block_is_on_the_disk_before_its_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who tidies up deletes what it copied next, and power may fail."""
    steps: list[str] = []
    flushed, named = os.fsync, os.replace

    def watched_flush(handle: int) -> None:
        steps.append(f"flush {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        flushed(handle)

    def watched_name(old: Path, new: Path) -> None:
        steps.append(f"name {old.name}")
        named(old, new)

    monkeypatch.setattr(os, "fsync", watched_flush)
    monkeypatch.setattr(os, "replace", watched_name)
    write_tensors(tmp_path / "rows", {"values": torch.zeros(2)}, ".new", durable=True)
    assert steps == ["flush rows.new", "name rows.new", f"flush {tmp_path.name}"]
