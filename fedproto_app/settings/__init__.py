"""Run configuration as frozen, typed settings.

The defaults are here. ``[tool.flwr.app.config]`` in ``pyproject.toml`` repeats them, because
Flower lets ``--run-config`` override only keys listed there. `tables` writes it, and the table of
docs/settings.md.
"""

from fedproto_app.methods import SEQUENCE_TASKS
from fedproto_app.settings.aggregation import AggregationSettings
from fedproto_app.settings.choice import DELIMITERS, Choice
from fedproto_app.settings.compared import (
    ApflSettings,
    CnfgnnSettings,
    DittoSettings,
    FedAlaSettings,
    FedAvgSettings,
    FedDaSettings,
    FedPclSettings,
    FedProtoSettings,
    FedProxSettings,
    FedRepSettings,
    FedTgpSettings,
    KnnPerSettings,
    PerFedAvgSettings,
    PFedMeSettings,
)
from fedproto_app.settings.data import (
    ClusterSettings,
    DataSettings,
    PartitionSettings,
    SequenceSettings,
    SyntheticSettings,
)
from fedproto_app.settings.faults import explain
from fedproto_app.settings.fedgru import FedGruSettings
from fedproto_app.settings.graph import FcgcnSettings, GraphSettings
from fedproto_app.settings.methods import (
    AnalyticSettings,
    CensusSettings,
    ChoiceSettings,
    Cosine,
    CreffSettings,
    EncoderSettings,
    FedicSettings,
    FedReactSettings,
    FuelsSettings,
    GldpSettings,
    HeadSimilarity,
    KindredSettings,
)
from fedproto_app.settings.model import ModelSettings, OptimizerSettings
from fedproto_app.settings.privacy import PrivacyPlan, PrivacySettings
from fedproto_app.settings.reading import (
    default_run_name,
    flat_settings,
    flower_config,
    settings_from,
)
from fedproto_app.settings.run import SMALL_COHORT, TASK_NAMES, Settings, Training
from fedproto_app.settings.section import (
    PLAIN_NAME,
    Count,
    CountOrZero,
    Device,
    PlainName,
    Section,
    setting,
    without_markdown,
)

__all__ = [
    "DELIMITERS",
    "PLAIN_NAME",
    "SEQUENCE_TASKS",
    "SMALL_COHORT",
    "TASK_NAMES",
    "AggregationSettings",
    "AnalyticSettings",
    "ApflSettings",
    "CensusSettings",
    "Choice",
    "ChoiceSettings",
    "ClusterSettings",
    "CnfgnnSettings",
    "Cosine",
    "Count",
    "CountOrZero",
    "CreffSettings",
    "DataSettings",
    "Device",
    "DittoSettings",
    "EncoderSettings",
    "FcgcnSettings",
    "FedAlaSettings",
    "FedAvgSettings",
    "FedDaSettings",
    "FedGruSettings",
    "FedPclSettings",
    "FedProtoSettings",
    "FedProxSettings",
    "FedReactSettings",
    "FedRepSettings",
    "FedTgpSettings",
    "FedicSettings",
    "FuelsSettings",
    "GldpSettings",
    "GraphSettings",
    "HeadSimilarity",
    "KindredSettings",
    "KnnPerSettings",
    "ModelSettings",
    "OptimizerSettings",
    "PFedMeSettings",
    "PartitionSettings",
    "PerFedAvgSettings",
    "PlainName",
    "PrivacyPlan",
    "PrivacySettings",
    "Section",
    "SequenceSettings",
    "Settings",
    "SyntheticSettings",
    "Training",
    "default_run_name",
    "explain",
    "flat_settings",
    "flower_config",
    "setting",
    "settings_from",
    "without_markdown",
]
