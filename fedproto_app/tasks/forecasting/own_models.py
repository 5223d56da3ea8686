"""The models of methods that bring their own, made for the windows that the settings choose."""

from __future__ import annotations

import numpy as np

from fedproto_app.data.windows import window_positions
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.community_gcn import CommunityGcn
from fedproto_app.models.ensemble import Ensemble
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.models.graph_forecaster import (
    GraphForecaster,
    GuidedForecaster,
    Seq2SeqForecaster,
)
from fedproto_app.models.linear_forecaster import LinearForecaster
from fedproto_app.models.model import Model
from fedproto_app.models.random_features import RandomFeatureForecaster
from fedproto_app.models.remembering import Remembering
from fedproto_app.models.stacked_gru import StackedGru
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import Settings


def linear(settings: Settings, layout: WindowLayout) -> LinearForecaster:
    """For the closed forms."""
    return LinearForecaster(layout)


def random_features(settings: Settings, layout: WindowLayout) -> RandomFeatureForecaster:
    """For Kindred: every process draws the same features."""
    draws = torch_stream(settings.seed, "random features")
    return RandomFeatureForecaster(layout, settings.kindred.features, draws)


def community_gcn(settings: Settings, layout: WindowLayout) -> CommunityGcn:
    """For FCGCN."""
    return CommunityGcn(settings.fcgcn.hidden, layout)


def gru_of_clusters(settings: Settings, layout: WindowLayout) -> Model:
    """For FedGRU: a model, or those of several clusters together."""
    section = settings.fedgru
    one = StackedGru(section.layers, section.hidden, layout)
    return one if section.clusters == 1 else Ensemble(one, section.clusters)


def remembering(settings: Settings, layout: WindowLayout) -> Remembering:
    """For kNN-Per: FUELS's forecaster, which may have a memory."""
    return Remembering(Forecaster(settings.model.representation_dim, layout), 0)


def graph_forecaster(settings: Settings, layout: WindowLayout) -> GraphForecaster:
    """For CNFGNN."""
    section = settings.cnfgnn
    if section.model == "fuels":
        return GuidedForecaster(settings.model.representation_dim, layout, section.hidden)
    places = window_positions(np.array([0]), settings.data)[0].tolist()
    return Seq2SeqForecaster(layout, places, section.hidden)
