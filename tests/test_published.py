"""What Flower Hub would get: it takes 1,000 files of at most 1 MB, and 10 MB together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from flwr.cli.utils import filter_paths_for_publish

ROOT = Path(__file__).parents[1]
MOST_FILES = 900  # some room before the Hub's limit
MOST_BYTES, LARGEST = 10 * 2**20, 2**20


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_hub_would_take_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout, so it is not known which files belong to it")
    files = {name: ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    published = filter_paths_for_publish(files)
    sizes = {name: files[name].stat().st_size for name in published}
    assert len(sizes) <= MOST_FILES
    assert sum(sizes.values()) <= MOST_BYTES
    assert [name for name, size in sizes.items() if size > LARGEST] == []
