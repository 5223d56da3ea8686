"""The shape of the data, which is the same for all clients of a federation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataShape:
    """The form of the inputs and the labels, which must be the same at every node.

    inputs: the shape of one sample if the data determine it, such as (channels, height, width) of
        an image. It is () if the settings determine it, as for the windows of a series.
    classes: the names of the classes in the order of the labels, () if there are none.
    columns: the names of the columns known in advance, for series. For sequences, the names of the
        values of a step if there are several and the source names them, else (). For images, the
        pretrained encoder if vectors stand in their place, else ().
    step: the step of the series in words, "" for series without times.
    names: the names of the values of a step at this node, for sequences. They are not compared.
    """

    inputs: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    step: str = ""
    names: tuple[str, ...] = field(default=(), compare=False)
