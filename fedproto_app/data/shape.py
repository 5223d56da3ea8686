"""The shape of the data, which is the same for all clients of a federation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataShape:
    """The input and the label space, which every node must share.

    inputs: the shape of one sample if the data determine it, (channels, height, width) of an
        image, or () if the settings do, as for the windows of a series.
    classes: the classes' names in the order of the labels, () without classes.
    known: the names of a series' columns known in advance.
    step: the step of series in words, "" for series without times.
    """

    inputs: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    step: str = ""
