"""FedProto beside PFLlib: the input of both sides, and the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks import fedproto_beside_pfllib as beside
from benchmarks.cross_check import split
from benchmarks.peers.pfllib_fedproto import Split
from fedproto_app.data.images.clients import ClientImages
from fedproto_app.settings import settings_from
from fedproto_app.tasks.images.task import normalised
from fedproto_app.tasks.table import load_shard


def test_both_sides_have_the_same_images_and_full_batches(tmp_path: Path) -> None:
    job = beside.made_job(3, tmp_path)
    data = split.data_settings(Path(job["split"]), 3, beside.NETWORK)
    shard = load_shard(settings_from({**data, "method": "fedproto"}), 0, 1)
    peer_split = Split(job["split"])
    assert sorted(shard.clients) == peer_split.names.tolist()
    assert len(peer_split.names) == beside.CLIENTS
    for number, name in enumerate(peer_split.names):
        client = shard.clients[name]
        assert isinstance(client, ClientImages)
        for is_train, ours in ((True, client.stages[0].train), (False, client.stages[0].test)):
            pixels, labels = zip(*peer_split.read("digits", number, is_train), strict=True)
            assert torch.equal(torch.stack(pixels), normalised(torch.from_numpy(ours.pixels)))
            np.testing.assert_array_equal(torch.stack(labels), ours.labels)
        assert len(client.stages[0].train) == beside.IMAGES
    assert beside.IMAGES % beside.BATCH == 0


def test_the_mean_of_the_seeds_by_hand() -> None:
    """Differences 0.02 and 0.04: mean 0.03, standard error 0.01, t = 12.7 with one degree."""
    line = beside.mean_line("head", [(0.92, 0.90), (0.94, 0.90)])
    assert line == ["mean", "head", "93.0", "90.0", "+3.0 ± 12.7", "-", "-"]
