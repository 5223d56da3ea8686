"""``[graph]``: which clients of series are neighbours (docs: graph.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from fedproto_app.core.section import Count, NonNegative, Section, setting


class GraphSettings(Section):
    """``[graph]``: where the edges between clients and their weights come from."""

    source: Literal["profiles", "positions", "file"] = setting(
        "profiles", "[what makes the edges](graph.md): days that clients send, places, or a file"
    )
    path: str = setting(
        "",
        'a CSV file: for `file` the weights, for `positions` a place for each name; there "" means '
        "that the clients' names are cells of a grid",
        "a path",
    )
    names: str = setting(
        "",
        "for a `file` without names: a CSV file whose header has them, as the data's own",
        "a path",
    )
    neighbours: Count = setting(8, "k, of `profiles`: who is most alike")
    noise: NonNegative = setting(
        0.0, "standard deviation of the noise that a client adds to its profile"
    )

    @model_validator(mode="after")
    def _paths_are_read(self) -> GraphSettings:
        if self.source == "file" and not self.path:
            raise ValueError("graph.path is empty: graph.source = 'file' reads one")
        if self.source == "profiles" and self.path:
            raise ValueError(
                f"graph.path = {self.path!r}: graph.source = 'profiles' reads none; set 'file' or "
                "'positions'"
            )
        if self.source != "file" and self.names:
            raise ValueError(f"graph.names = {self.names!r}: only with graph.source = 'file'")
        return self
