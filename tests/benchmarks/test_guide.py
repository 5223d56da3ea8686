"""The guide's commands are found, are valid shell, and are all played."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.guide import GUIDE, PLACES, Block, Machine, Play, blocks

BLOCKS = blocks(GUIDE.read_text(encoding="utf-8"))


def test_every_marked_block_is_found() -> None:
    marks = GUIDE.read_text(encoding="utf-8").count("<!-- run:")
    assert len(BLOCKS) == marks > 15
    assert {place for place, _ in BLOCKS} == set(PLACES)


def test_every_block_is_played() -> None:
    source = inspect.getsource(Play)
    strings = set(re.findall(r'"([a-z]+)"', source))
    assert {name for _, name in BLOCKS} <= strings


@pytest.mark.parametrize("block", BLOCKS.values(), ids=lambda block: f"{block.place} {block.name}")
def test_every_block_is_shell(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.commands], check=True)


def test_machines_have_folders_of_their_own(tmp_path: Path) -> None:
    site = Machine(tmp_path / "site", "site", "oldtown", base="local/python")
    folder = tmp_path / "site"
    assert site.adapted("sudo cp a /etc/fedproto/b; x --node harbour\n") == (
        f"cp a {folder}/etc/fedproto/b; x --node oldtown\n"
    )
    assert site.adapted(
        "docker run -v /etc/fedproto:/etc/fedproto i fedproto keys /etc/fedproto/k"
    ) == (f"docker run -v {folder}/etc/fedproto:/etc/fedproto i fedproto keys /etc/fedproto/k")
    assert site.adapted("docker build -t x .").startswith("docker build --network host --build-arg")
    assert (folder / "docker" / "site.yml").exists()
