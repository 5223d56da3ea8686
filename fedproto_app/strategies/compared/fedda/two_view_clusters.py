"""FedDA's clusters (Zhang et al., INFOCOM 2021): by what clients measure and where they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedproto_app.maths.clustering import Labels, by_first_appearance

MOST_TURNS = 20

Points = NDArray[np.float64]


def two_view_clusters(
    patterns: Points, places: Points | None, clusters: int, seed: int = 0
) -> Labels:
    """K-means of the patterns and of the places in turns; each begins with the other's clusters.

    Ends when the clusters of the patterns stay, or after 20 turns. Without places it is k-means of
    the patterns. Labels [N] are numbered by first appearance; equal points can leave fewer than C.
    patterns: [N, m]; places: [N, 2]; clusters: C ≤ N; seed: of the first centres (k-means++).
    """
    first = KMeans(min(clusters, len(np.unique(patterns, axis=0))), n_init=10, random_state=seed)
    labels = by_first_appearance(first.fit(patterns).labels_.astype(np.int64))
    for _ in range(MOST_TURNS if places is not None else 0):
        assert places is not None
        before = labels
        labels = _k_means(patterns, _k_means(places, labels))
        if (labels == before).all():
            break
    return labels


def centroids(points: Points, labels: Labels) -> Points:
    """[C, m] the mean point of each of the clusters 0 … C−1."""
    return np.stack([points[labels == one].mean(axis=0) for one in range(labels.max() + 1)])


def nearest(points: Points, centres: Points) -> Labels:
    """[N] which of the centres [C, m] is the nearest to each of the points [N, m]."""
    distances = ((points[:, None] - centres) ** 2).sum(axis=2)
    labels: Labels = distances.argmin(axis=1)
    return labels


def _k_means(points: Points, start: Labels) -> Labels:
    """Lloyd's algorithm from the centroids of these clusters."""
    centres = np.unique(centroids(points, start), axis=0)
    found = KMeans(len(centres), init=centres, n_init=1).fit(points)
    return by_first_appearance(found.labels_.astype(np.int64))
