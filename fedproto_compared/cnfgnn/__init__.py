"""CNFGNN: a graph network over the clients, at the server."""

from __future__ import annotations

from typing import Literal

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, CountOrZero, Positive, Section, setting


class CnfgnnSettings(Section):
    """``[cnfgnn]``: a graph network over the clients at the server (docs: compared.md)."""

    model: Literal["paper", "fuels"] = setting(
        "paper",
        "the clients' model: two GRUs, or FUELS's model with the graph network's vector g",
    )
    hidden: Count = setting(64, "length of g and of the paper's encoding")
    server_epochs: CountOrZero = setting(
        1,
        "epochs of the graph network per round (R_s). With 0, g is 0",
    )
    server_batch: Count = setting(48, "time steps per step of the graph network")
    server_rate: Positive = setting(1e-3, "Adam's learning rate for the graph network")


METHOD = Method(
    name="cnfgnn",
    strategy=f"{__name__}.strategy:CnfgnnStrategy",
    learner=f"{__name__}.learner:CnfgnnLearner",
    settings=CnfgnnSettings,
    tasks=("forecasting",),
    model=f"{__name__}.learner:graph_forecaster",
    needs_simulation=(
        "a client's model forecasts only with the server's outputs for all clients' encodings, so "
        "no site could use it after the run; and the encoding of every sample leaves the client, "
        "and a server that has the encoder can recover the values from it"
    ),
    cannot_predict=lambda settings: (
        "its decoder needs the outputs of the server's graph network for all clients' encodings "
        "of the same time"
    ),
    by_time=True,
    small={"cnfgnn.hidden": 8, "cnfgnn.server-rate": 1e-4},
)
