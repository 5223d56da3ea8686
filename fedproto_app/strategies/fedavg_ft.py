"""FedAvg whose clients fine-tune the shared model before they are evaluated. This is the simplest
way to a personal model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator

from fedproto_app.core.section import Count, setting
from fedproto_app.strategies import fedavg


class FineTunedSettings(fedavg.FedAvgSettings):
    """``[fedavg]`` with at least one epoch of fine-tuning."""

    fine_tune_epochs: Annotated[Count, BeforeValidator(lambda epochs: epochs or 1)] = setting(
        1, "epochs on a client's own data before evaluation (0: none. `fedavg-ft` has 1)"
    )


METHOD = replace(fedavg.METHOD, name="fedavg-ft", table="fedavg", settings=FineTunedSettings)
