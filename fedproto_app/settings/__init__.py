"""Run configuration as frozen, typed settings.

The defaults are defined here. ``[tool.flwr.app.config]`` in ``pyproject.toml`` repeats them,
because Flower lets ``--run-config`` override only the keys that are listed there. `tables` writes
this part of pyproject.toml and the lists in docs/settings.md.
"""

from fedproto_app.core.section import (
    PLAIN_NAME,
    Count,
    CountOrZero,
    Device,
    PlainName,
    Section,
    setting,
    without_markdown,
)
from fedproto_app.settings.aggregation import AggregationSettings, PrivacyPlan, PrivacySettings
from fedproto_app.settings.choice import DELIMITERS, Choice
from fedproto_app.settings.data import (
    ClusterSettings,
    DataSettings,
    GraphSettings,
    PartitionSettings,
    SequenceSettings,
    SyntheticSettings,
)
from fedproto_app.settings.faults import explain
from fedproto_app.settings.model import EncoderSettings, ModelSettings, OptimizerSettings
from fedproto_app.settings.reading import (
    default_run_name,
    defaults_of,
    flat_settings,
    flower_config,
    settings_from,
    without_other_methods,
)
from fedproto_app.settings.run import FIRST_METHOD, SMALL_COHORT, TASK_NAMES, Settings, Training

__all__ = [
    "DELIMITERS",
    "FIRST_METHOD",
    "PLAIN_NAME",
    "SMALL_COHORT",
    "TASK_NAMES",
    "AggregationSettings",
    "Choice",
    "ClusterSettings",
    "Count",
    "CountOrZero",
    "DataSettings",
    "Device",
    "EncoderSettings",
    "GraphSettings",
    "ModelSettings",
    "OptimizerSettings",
    "PartitionSettings",
    "PlainName",
    "PrivacyPlan",
    "PrivacySettings",
    "Section",
    "SequenceSettings",
    "Settings",
    "SyntheticSettings",
    "Training",
    "default_run_name",
    "defaults_of",
    "explain",
    "flat_settings",
    "flower_config",
    "setting",
    "settings_from",
    "without_markdown",
    "without_other_methods",
]
