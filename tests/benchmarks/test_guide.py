"""What the guide tells a reader to type can be found, is shell, and is all of it played."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.guide import GUIDE, PLACES, Block, Machine, Play, blocks

FOUND = blocks(GUIDE.read_text(encoding="utf-8"))


def test_every_marked_block_is_found() -> None:
    marks = GUIDE.read_text(encoding="utf-8").count("<!-- run:")
    assert len(FOUND) == marks > 15
    assert {place for place, _ in FOUND} == set(PLACES)


def test_every_block_is_played() -> None:
    source = inspect.getsource(Play)
    named = set(re.findall(r'"([a-z]+)"', source))
    assert {name for _, name in FOUND} <= named


@pytest.mark.parametrize("block", FOUND.values(), ids=lambda block: f"{block.place} {block.name}")
def test_every_block_is_shell(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.commands], check=True)


def test_machines_have_folders_of_their_own(tmp_path: Path) -> None:
    site = Machine(tmp_path / "site", "site", "oldtown", base="local/python")
    own = tmp_path / "site"
    assert site.adapted("sudo cp a /etc/fedproto/b; x --node harbour\n") == (
        f"cp a {own}/etc/fedproto/b; x --node oldtown\n"
    )
    assert site.adapted(
        "docker run -v /etc/fedproto:/etc/fedproto i fedproto keys /etc/fedproto/k"
    ) == (f"docker run -v {own}/etc/fedproto:/etc/fedproto i fedproto keys /etc/fedproto/k")
    assert site.adapted("docker build -t x .").startswith("docker build --network host --build-arg")
    assert (own / "docker" / "site.yml").exists()
