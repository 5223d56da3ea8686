"""The network that both sides train and the images that both have. Neither side is imported."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """A perceptron for small images. inputs: channels, height, width. outputs: classes."""

    def __init__(self, inputs: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(prod(inputs), 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        )
        self.head = nn.Linear(32, outputs)


class GivenSplit:
    """Images already dealt to clients, from an archive of `benchmarks.cross_check.split`."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as arrays:
            self._arrays = dict(arrays)
        self.names = np.unique(self._arrays["client_train"])
        self.classes = len(self._arrays["classes"])
        self.shape = self._arrays["x_train"].shape[1:]

    def images(self, part: str, name: str) -> tuple[Tensor, Tensor]:
        """Return a client's images, between −2 and 2 as the app shows them to a module, and labels.

        part: "train" or "test".
        """
        rows = self._arrays[f"client_{part}"] == name
        pixels = torch.from_numpy(self._arrays[f"x_{part}"][rows]).float()
        labels = torch.from_numpy(self._arrays[f"y_{part}"][rows].astype(np.int64))
        return (pixels / 255 - 0.5) / 0.25, labels


def load_start(network: nn.Module, path: str) -> None:
    """Give the network the app's initial parameters."""
    with np.load(path, allow_pickle=False) as arrays:
        network.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
