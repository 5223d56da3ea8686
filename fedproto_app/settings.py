"""Run configuration as frozen, typed settings.

Flower hands the app a flat dictionary with dotted keys (``fuels.temperature``); the
configuration files nest the same keys as TOML tables. Both become one `Settings` object here,
before any node is asked to work. Keys are kebab-case outside and snake_case inside.

The defaults below and ``[tool.flwr.app.config]`` in ``pyproject.toml`` are the same table (a
test compares them), because Flower lets ``--run-config`` override only keys listed there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedproto_app.errors import SettingsError

Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
PLAIN_NAME = r"[A-Za-z0-9][A-Za-z0-9._=+-]*"  # fit for a folder, and no way out of one
PlainName = Annotated[str, Field(pattern=rf"^({PLAIN_NAME})?$", max_length=120)]

Method = Literal["fuels", "solo", "fedavg", "fedprox", "fedrep", "fedproto"]
METHOD_NAMES: tuple[str, ...] = get_args(Method)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """One frozen table of settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=_kebab, populate_by_name=True
    )


class SyntheticSettings(Section):
    """``[data.synthetic]``: the embedded traffic generator."""

    clients: Count = 24
    days: Annotated[int, Field(ge=8)] = 42
    seed: CountOrZero = 0


class DataSettings(Section):
    """``[data]``: where the series come from and how they become samples (docs: fuels.md)."""

    source: Annotated[str, Field(min_length=1)] = "synthetic-traffic"
    path: str = ""
    name: PlainName = ""  # shown in tables; default: the file's or the source's name
    period: Annotated[int, Field(ge=2)] = 24
    close_window: Count = 3
    periodic_window: Count = 3
    train_share: Share = 0.7
    validation_share: Share = 0.1
    max_clients: CountOrZero = 0  # the first so many clients of the source; 0 = all
    max_steps: CountOrZero = 0  # the first so many time steps of the source; 0 = all
    synthetic: SyntheticSettings = SyntheticSettings()

    @model_validator(mode="after")
    def _shares_leave_a_test_part(self) -> DataSettings:
        if self.train_share + self.validation_share >= 1:
            raise ValueError(
                "data.train-share + data.validation-share must stay below 1 to leave a test part, "
                f"got {self.train_share} + {self.validation_share}"
            )
        return self

    @property
    def title(self) -> str:
        """The dataset's name in tables and run names."""
        if self.name:
            return self.name
        return Path(self.path).name.split(".")[0] if self.path else self.source.split(":")[0]


class ModelSettings(Section):
    """``[model]``: the forecaster all methods share."""

    representation_dim: Annotated[int, Field(ge=2, multiple_of=2)] = 256


class OptimizerSettings(Section):
    """``[optimizer]``: Adam."""

    learning_rate: Positive = 1e-3


class FuelsSettings(Section):
    """``[fuels]``: FUELS; Greek letters of the paper are spelled out."""

    prototype_dim: CountOrZero = 32  # d_p; 0 = no projector, the representation itself
    temperature: Positive = 0.02  # tau
    inter_weight: NonNegative = 5.0  # rho
    negatives: Literal["filtered", "similarity"] = "filtered"  # P eq. 6 / A eq. 2
    augmentation_low: Annotated[float, Field(gt=0, le=1)] = 0.8
    threshold: Literal["percentile", "absolute"] = "percentile"
    beta: NonNegative = 50.0  # a percentile of the off-diagonal JSDs, or a JSD in nats
    intra: bool = True  # ablation "w/o intra"
    inter: bool = True  # ablation "w/o inter"
    periodicity_aware: bool = True  # ablation "w/o p-aware"
    learn_filter: bool = True  # ablation "w/o W"
    noise: Literal["none", "laplace", "gaussian", "exponential"] = "none"
    noise_scale: Positive = 1.0

    @model_validator(mode="after")
    def _percentile_in_range(self) -> FuelsSettings:
        if self.threshold == "percentile" and self.beta > 100:
            raise ValueError(
                f'fuels.beta = {self.beta} is no percentile: with fuels.threshold = "percentile" '
                "it must lie in 0 ... 100"
            )
        return self


class FedProxSettings(Section):
    """``[fedprox]``."""

    proximal_mu: NonNegative = 0.01  # Li et al. 2020 try 0.001 ... 1


class FedRepSettings(Section):
    """``[fedrep]``."""

    head_epochs: Count = 1  # head steps with the encoder frozen, before the encoder's epochs


class FedProtoSettings(Section):
    """``[fedproto]``."""

    prototype_weight: NonNegative = 1.0  # Tan et al. 2022: lambda = 1


class NodesSettings(Section):
    """``[nodes]``: how long the server waits, and for whom."""

    minimum: Count = 1  # nodes needed before the first round
    start_deadline: Positive = 120.0  # seconds to wait for them
    round_deadline: Positive = 3600.0  # seconds to wait for the replies of one phase
    maximum_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.5  # above: the run stops


class OutputSettings(Section):
    """``[output]``: where the artefacts of the run go."""

    dir: Annotated[str, Field(min_length=1)] = "runs"
    name: PlainName = ""  # default: method-dataset-seed-time
    pictures: bool = True


class Settings(Section):
    """Everything a run can be told."""

    method: Method = "fuels"
    seed: CountOrZero = 0
    rounds: Count = 40
    local_epochs: Count = 1
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # alpha
    evaluate_every: Count = 1
    patience: CountOrZero = 0  # evaluations without a better mean validation error; 0 = no stop
    keep: Literal["best-validation", "last"] = "best-validation"
    device: Annotated[str, Field(pattern=r"^(cpu|auto|cuda(:\d+)?)$")] = "cpu"
    threads: Count = 1  # torch threads of a node's process
    cohort_size: Count = 16  # clients trained together in one vectorised step
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    fuels: FuelsSettings = FuelsSettings()
    fedprox: FedProxSettings = FedProxSettings()
    fedrep: FedRepSettings = FedRepSettings()
    fedproto: FedProtoSettings = FedProtoSettings()
    nodes: NodesSettings = NodesSettings()
    output: OutputSettings = OutputSettings()


def settings_from(config: Mapping[str, Any]) -> Settings:
    """Validate a run configuration, flat with dotted keys or nested.

    Raises `SettingsError` with one line per fault: the key, the value, what is allowed.
    """
    try:
        return Settings.model_validate(_nested(config))
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(fault) for fault in error.errors())) from None


def default_run_name(settings: Settings) -> str:
    """method-dataset-seed-time, fit for a folder."""
    title = re.sub(r"[^A-Za-z0-9._=+-]+", "-", settings.data.title)[:60]
    return f"{settings.method}-{title}-s{settings.seed}-{datetime.now():%Y%m%d-%H%M%S}"


def flat_settings(settings: Settings) -> dict[str, Any]:
    """The settings as Flower's flat run configuration with dotted keys."""
    flat: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(settings.model_dump(by_alias=True), "")
    return flat


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in config.items():
        *tables, leaf = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key}: {name!r} is a value, not a table of settings")
        known = table.get(leaf)
        if isinstance(value, Mapping):
            inner = _nested(value)
            if known is not None and not isinstance(known, dict):
                raise SettingsError(f"{key}: {leaf!r} is a value, not a table of settings")
            table[leaf] = {**(known or {}), **inner}
        else:
            table[leaf] = value
    return nested


def _explain(fault: Any) -> str:
    """One line for one of pydantic's faults."""
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown setting; known here: {', '.join(_known(fault['loc'][:-1]))}"
    if fault["type"] == "model_type":
        return f"{key} = {fault['input']!r}: must be a table of settings"
    return f"{key} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _known(location: tuple[str | int, ...]) -> list[str]:
    section: type[BaseModel] = Settings
    for part in location:
        field = next(f for f in section.model_fields.values() if f.alias == part)
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        section = field.annotation
    return sorted(str(field.alias) for field in section.model_fields.values())
