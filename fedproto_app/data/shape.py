"""What the data of all clients of a federation have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataShape:
    """The input and the label space, which every node must share.

    inputs: the shape of one sample where the data decide it, (channels, height, width) of an
        image; () where the settings do, as for the windows of a series.
    classes: the classes' names in the order of the labels; () where nothing is classified.
    """

    inputs: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
