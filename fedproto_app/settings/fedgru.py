"""``[fedgru]`` (docs: graph.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedproto_app.settings.section import Count, CountOrZero, Section, setting


class FedGruSettings(Section):
    """``[fedgru]``: organisations of several clients, and models of clusters of organisations."""

    layers: Count = setting(2, "GRUs on top of each other")
    hidden: Count = setting(50, "width of each")
    organisations: CountOrZero = setting(
        10, "groups of clients with neighbouring names; 0: the communities of the graph"
    )
    clusters: Annotated[int, Field(ge=1, le=4)] = setting(
        2, "C, of organisations that are near each other in the graph, with a model each"
    )
    smallest: Count = setting(1, "organisations that a cluster has at least")

    @model_validator(mode="after")
    def _organisations_fill_the_clusters(self) -> FedGruSettings:
        if 0 < self.organisations < self.clusters * self.smallest:
            raise ValueError(
                f"fedgru.organisations = {self.organisations}: fewer than fedgru.clusters = "
                f"{self.clusters} × fedgru.smallest = {self.smallest}"
            )
        return self
