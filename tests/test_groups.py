"""FUELS's claim about its prototypes: clients of one kind have similar prototypes.

The synthetic sites have a kind, which training does not use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes


def agreement(folder: Path) -> float:
    """Compare the clusters of a run's divergence matrix with the clients' true groups."""
    with np.load(folder / "divergence.npz", allow_pickle=False) as file:
        divergence, groups = file["divergence"].astype(np.float64), file["groups"].tolist()
    tree = linkage(squareform(divergence), method="average")
    clusters = fcluster(tree, t=len(set(groups)), criterion="maxclust").tolist()
    return float(adjusted_rand_score(groups, clusters))


def fuels(tmp_path: Path, **changes: Any) -> Path:
    settings = small_settings(
        tmp_path,
        **{
            "rounds": 6,
            "data.synthetic.clients": 16,
            "data.synthetic.days": 28,
            "model.representation-dim": 32,
            "fuels.prototype-dim": 32,
            **changes,
        },
    )
    folder, _ = run_locally(settings, synthetic_nodes(1, tmp_path / "state"))
    return folder.path


def test_prototypes_alone_find_the_true_groups(tmp_path: Path) -> None:
    assert agreement(fuels(tmp_path)) > 0.8


def test_under_noise_as_large_as_the_prototypes_the_groups_are_gone(tmp_path: Path) -> None:
    assert agreement(fuels(tmp_path, **{"fuels.noise": "gaussian"})) < 0.3
