"""FUELS's claim about its prototypes: clients of one kind have similar prototypes.

The synthetic sites have a kind, which training does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes


def adjusted_rand_index(first: Sequence[Any], second: Sequence[Any]) -> float:
    """Hubert and Arabie (1985): pairs on which two partitions agree, 1 for all, 0 for chance."""

    def pairs(labels: Sequence[Any]) -> int:
        return sum(comb(labels.count(label), 2) for label in set(labels))

    first_pairs, second_pairs = pairs(list(first)), pairs(list(second))
    common_pairs = pairs(list(zip(first, second, strict=True)))
    chance = first_pairs * second_pairs / comb(len(first), 2)
    return (common_pairs - chance) / ((first_pairs + second_pairs) / 2 - chance)


def agreement(folder: Path) -> float:
    """Compare the clusters of a run's divergence matrix with the clients' true groups."""
    with np.load(folder / "divergence.npz", allow_pickle=False) as file:
        divergence, groups = file["divergence"].astype(np.float64), file["groups"].tolist()
    tree = linkage(squareform(divergence), method="average")
    clusters = fcluster(tree, t=len(set(groups)), criterion="maxclust").tolist()
    return adjusted_rand_index(groups, clusters)


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


def test_the_adjusted_rand_index_by_hand() -> None:
    assert adjusted_rand_index("aabb", "xxyy") == 1
    # 1 pair together in both, 2 and 1 in each, 1/3 by chance: (1 - 1/3) / (3/2 - 1/3)
    assert adjusted_rand_index("aabb", "xxyz") == pytest.approx(4 / 7)
    assert adjusted_rand_index("aabb", "xyxy") == pytest.approx(-1 / 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_prototypes_alone_find_the_true_groups(tmp_path: Path, seed: int) -> None:
    folder = fuels(tmp_path, seed=seed, **{"data.synthetic.seed": seed})
    assert agreement(folder) > 0.8


def test_under_noise_as_large_as_the_prototypes_the_groups_are_gone(tmp_path: Path) -> None:
    assert agreement(fuels(tmp_path, **{"fuels.noise": "gaussian"})) < 0.3
