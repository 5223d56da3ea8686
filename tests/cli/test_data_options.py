from __future__ import annotations

import inspect
from typing import get_args

from fedproto_app.cli.data_options import data_options, panel, with_data_options
from fedproto_app.core.tasks import TASKS
from fedproto_app.settings import flat_settings, settings_from

KINDS = ["series", "images", "labelled sequences"]


def test_every_option_is_a_setting() -> None:
    defaults = flat_settings(settings_from({}))
    for option in data_options().values():
        assert set(option.fields) == set(option.keys.values())
        for key, setting in option.fields.items():
            assert defaults[key] == setting.default


def test_every_setting_of_the_tables_of_dealing_has_an_option() -> None:
    keys = {key for option in data_options().values() for key in option.fields}
    tables = ("data.partition.", "data.clusters.", "data.sequences.")
    assert keys >= {key for key in flat_settings(settings_from({})) if key.startswith(tables)}


def test_one_option_serves_two_tables() -> None:
    clients = data_options()["clients"]
    assert clients.key("images") == "data.partition.clients"
    assert clients.key("labelled sequences") == "data.clusters.clients"
    assert clients.key("series") is None
    assert clients.key("") is None  # what the data hold is not known yet


def test_an_option_that_means_the_same_for_all_needs_no_kind() -> None:
    assert data_options()["period"].key("") == "data.period"
    assert data_options()["max_clients"].key("") == "data.max-clients"


def test_a_panel_tells_who_takes_its_options() -> None:
    assert list(dict.fromkeys(record.holds for record in TASKS.values())) == KINDS
    assert panel(["images"]) == "Images"
    assert panel(["images", "labelled sequences"]) == "Images and labelled sequences"
    assert panel(KINDS) is None


def test_types_words_and_defaults_come_from_the_settings() -> None:
    def command(path: str, **option_values: object) -> None: ...

    parameters = inspect.signature(with_data_options(command)).parameters
    assert next(iter(parameters)) == "path"
    assert "option_values" not in parameters
    kind, option = get_args(parameters["scheme"].annotation)
    assert kind == str | None
    assert option.metavar == "long-tail|dirichlet|given"
    kind, option = get_args(parameters["clients"].annotation)
    assert kind == int | None
    assert "data.partition.clients = 20, data.clusters.clients = 10" in option.help
    kind, option = get_args(parameters["imbalance_factor"].annotation)
    assert kind == float | None
