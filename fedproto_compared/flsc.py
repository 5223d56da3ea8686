"""FLSC (Li, Li and Varshney, IEEE Internet of Things Journal 2021), on heads: IFCA whose clients
belong to several clusters."""

from __future__ import annotations

from dataclasses import replace

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.method import RunSettings
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_compared import ifca


class FlscSettings(FedReactSettings):
    """``[fed-react]``, for clients that choose ``overlap`` clusters."""

    @property
    def choices(self) -> int:
        return self.overlap


def check_overlap(settings: RunSettings) -> None:
    """Raise `SettingsError` if the overlap exceeds the number of clusters."""
    ifca.check_clusters(settings)
    section = settings.method_table(FedReactSettings)
    if section.overlap > section.clusters:
        raise SettingsError(
            f"fed-react.overlap = {section.overlap}: more than fed-react.clusters = "
            f"{section.clusters}"
        )


METHOD = replace(ifca.METHOD, name="flsc", settings=FlscSettings, check=check_overlap)
