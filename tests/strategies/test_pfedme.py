"""pFedMe's server: the share of the clients' mean in the shared model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.local_grid import run_locally, small_settings, synthetic_nodes


def model_after(tmp_path: Path, name: str, **changes: float) -> dict[str, np.ndarray]:
    settings = small_settings(
        tmp_path, method="pfedme", rounds=1, **{"output.name": name, **changes}
    )
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / name))
    return load_file(folder.path / "model" / "global.safetensors")


def test_the_server_goes_so_far_towards_the_mean(tmp_path: Path) -> None:
    """β = 2 goes twice as far as β = 1, and β = 0.5 half: the start is what all three share."""
    half, mean, twice = (
        model_after(tmp_path, f"b{beta}", **{"pfedme.server-step": beta}) for beta in (0.5, 1, 2)
    )
    for name, value in mean.items():
        step = 2 * (value - half[name])
        assert np.abs(step).max() > 0
        np.testing.assert_allclose(twice[name], value + step, rtol=1e-4, atol=1e-6)
