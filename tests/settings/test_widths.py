"""Clients whose models have different widths: their draw, refused settings, kept models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedproto_app.core.errors import SettingsError
from fedproto_app.data.shape import DataShape
from fedproto_app.data.sources import load_histories
from fedproto_app.experiments.invariants import (
    SmallRuns,
    cohorts_equal_their_clients,
    kept_models_predict,
    kills_change_nothing,
)
from fedproto_app.node.orders import tell_roster, with_own_width
from fedproto_app.node.site import read_site
from fedproto_app.report.runs import read_rounds
from fedproto_app.serving import forecast, open_state
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.tasks.table import make_task, small_run
from tests.helpers.local_grid import run_locally, small_settings

NAMES = [f"c{number}" for number in range(300)]
TWO = {"model.width-factors": "1,0.5"}


def settings_of(task: str, **changes: Any) -> Settings:
    return settings_from({**small_run(task), "method": "fedproto", **changes})


def test_every_client_draws_a_width_by_its_name() -> None:
    settings = settings_of("classification", **{"model.width-factors": "1,0.5,2"})
    groups = {
        width_settings.model.factors: names for width_settings, names in settings.by_width(NAMES)
    }
    assert groups.keys() == {(1.0,), (0.5,), (2.0,)}
    assert sorted(name for names in groups.values() for name in names) == sorted(NAMES)
    assert min(map(len, groups.values())) > 70
    for name in NAMES[::50]:  # whoever else is there
        (alone,) = settings.by_width([name])
        assert name in groups[alone[0].model.factors]
        assert settings.of_client(name) == alone[0]


def test_with_a_single_width_there_is_one_group() -> None:
    settings = settings_of("classification")
    assert settings.by_width(["b", "a"]) == [(settings, ["b", "a"])]


@pytest.mark.parametrize(
    ("task", "layer", "full", "half"),
    [
        ("classification", "encoder.blocks.0.conv.weight", 16, 8),
        ("sequence-classification", "encoder.embedding.weight", 6, 3),
        ("forecasting", "encoder.close.weight_hh", 8, 4),
    ],
)
def test_the_layers_in_front_of_the_representation_are_narrower(
    task: str, layer: str, full: int, half: int
) -> None:
    settings = settings_of(task, **TWO, **{"model.width": 16})
    shape = {
        "classification": DataShape((1, 8, 8), ("ant", "bee")),
        "sequence-classification": DataShape((2,), ("ant", "bee")),
    }.get(task, DataShape())
    full_task, narrow_task = (
        make_task(settings.with_factor(factor), shape) for factor in (1.0, 0.5)
    )
    assert full in full_task.initial_parameters()[layer].shape
    assert half in narrow_task.initial_parameters()[layer].shape
    assert full_task.representation_dim == narrow_task.representation_dim


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model.width-factors": "1,wide"}, "'1,wide': expected numbers > 0 between commas"),
        ({"model.width-factors": ""}, "expected numbers > 0 between commas"),
        ({"model.width-factors": "0.5,0"}, "expected numbers > 0 between commas"),
        ({"model.width-factors": "1,1.0"}, "duplicate number"),
        ({**TWO, "method": "fedavg"}, "'1,0.5': method = 'fedavg' sends parameters of the model"),
        ({**TWO, "method": "fedrep"}, "several widths go with .*solo.*fedproto"),
        ({**TWO, "method": "analytic"}, "method = 'analytic' has a model of its own"),
        ({**TWO, "model.module": "a:b"}, "model.module = 'a:b' has one width"),
    ],
)
def test_what_cannot_have_several_widths_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        settings_of("classification", **changes)


def test_one_width_for_all_goes_with_an_average() -> None:
    settings = settings_of("classification", method="fedavg", **{"model.width-factors": 0.5})
    assert settings.model.factors == (0.5,)


def test_resnet_has_one_width() -> None:
    settings = settings_of("classification", **TWO, **{"model.image-encoder": "resnet18"})
    with pytest.raises(SettingsError, match="'resnet18' has one width"):
        make_task(settings, DataShape((1, 8, 8), ("ant", "bee"))).initial_parameters()


def test_a_length_that_resnet_cannot_have_is_refused_with_the_next() -> None:
    changes = {"model.image-encoder": "resnet18", "model.representation-dim": 24}
    settings = settings_of("classification", **changes)
    with pytest.raises(SettingsError, match=r"dim = 24: .* 8×8 pixels, .* is 48"):
        make_task(settings, DataShape((1, 8, 8), ("ant", "bee"))).initial_parameters()


def test_a_site_names_the_width_of_its_clients(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("width-factor = 0.5\n")
    site = read_site({"site": str(file)})
    assert with_own_width(settings_of("classification", **TWO), site).model.factors == (0.5,)
    with pytest.raises(SettingsError, match=r"width-factor = 0\.5 .*width-factors = '1'"):
        with_own_width(settings_of("classification"), site)


def test_a_site_whose_width_the_run_lacks_is_turned_away_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(
        'name = "north"\nstate-dir = "state"\nwidth-factor = 0.5\n'
        '[data]\nsource = "synthetic-traffic"\nclients = "office-00"\n'
    )
    run = flat_settings(settings_of("forecasting"))
    context = Context(1, 1, {"site": str(file)}, RecordDict(), run)
    roster = tell_roster(context, simulated=False)
    assert roster.samples == {}
    assert roster.error.startswith("width-factor = 0.5 in this site's file")


@pytest.mark.parametrize(
    "task",
    [
        "forecasting",
        "classification",
        pytest.param("sequence-classification", marks=pytest.mark.exhaustive),
    ],
)
def test_cohorts_state_and_resumption_go_with_it(tmp_path: Path, task: str) -> None:
    runs = SmallRuns(task, "fedproto", tmp_path, **TWO, **{"local-epochs": 1})
    for invariant in (cohorts_equal_their_clients, kills_change_nothing):
        deviation = invariant(runs)
        assert deviation.held, deviation.where


def test_the_kept_models_of_either_width_forecast(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", "fedproto", tmp_path, **TWO)
    deviation = kept_models_predict(runs)
    assert deviation.held, deviation.where
    store = open_state(runs.state("one-node")).store
    name = "parameters/encoder.close.weight_hh"
    models = [store.read_kept(client) for client in store.kept_clients()]
    widths = Counter(len(model[name]) for model in models if model)
    assert widths.keys() == {8, 4}


def test_a_site_keeps_models_of_its_own_width(tmp_path: Path) -> None:
    """One site's file sets a width, the other site's clients draw theirs, and both forecast."""
    configs = []
    for name, clients, width in (("north", "office-00,office-01", "0.5"), ("south", "", "")):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f'name = "{name}"\nstate-dir = "{name}"\n{width and f"width-factor = {width}"}\n'
            f'[data]\nsource = "synthetic-traffic"\nclients = "{clients or "transport-00"}"\n'
            "[limits]\nleast-periods = 0\n"
        )
        configs.append({"site": str(file)})
    settings = small_settings(
        tmp_path, method="fedproto", rounds=2, **{"model.width-factors": "0.25,0.5"}
    )
    folder, _ = run_locally(settings, configs)
    assert [line["clients"] for line in read_rounds(folder.path)] == [3, 3]
    (north,) = (path.parent for path in (tmp_path / "north").rglob("settings.toml"))
    state = open_state(north)
    assert state.settings.model.factors == (0.5,)
    series = load_histories(state.settings.data.model_copy(update={"source": "synthetic-traffic"}))
    forecasts, _ = forecast(state, series, 1, clients=["office-00", "office-01"])
    assert [len(result.values) for result in forecasts] == [1, 1]
