"""The line that `fedproto data check` ends with: a run takes it as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.cli.run_settings import told
from fedproto_app.settings import settings_from
from tests.cli.conftest import Fedproto

DRAWS = np.random.default_rng(0)
IMAGES = {
    f"{array}_{part}": value
    for part, count in (("train", 3000), ("test", 500))
    for array, value in (
        ("x", DRAWS.integers(0, 255, (count, 12, 12), dtype=np.uint8)),
        ("y", np.arange(count) % 5),
    )
}
MEASURED = {"x": DRAWS.normal(size=(200, 30, 3)), "y": DRAWS.normal(size=200)}


@pytest.mark.parametrize(
    ("arrays", "options", "method", "keep"),
    [
        (IMAGES, ["--clients", 4], "analytic", "last"),
        (IMAGES, ["--clients", 4, "--stages", 1], "analytic", "best-validation"),
        (MEASURED, ["--scheme", "given"], "fed-react", "best-validation"),
    ],
    ids=["images in stages", "images", "numbers to tell"],
)
def test_a_run_takes_it(
    fedproto: Fedproto,
    tmp_path: Path,
    arrays: dict[str, np.ndarray],
    options: list[str],
    method: str,
    keep: str,
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    outcome = fedproto("data", "check", tmp_path / "data.npz", *options)
    assert outcome.code == 0, outcome.err
    *_, line = outcome.out.rstrip().split("\n")
    _, _, words = line.partition("train on it: fedproto run ")
    settings = settings_from(told(None, [one for one in shlex.split(words) if one != "--set"]))
    assert (settings.method, settings.keep) == (method, keep)
