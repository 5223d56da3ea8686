"""A method needs only a module in a folder: masks, noise, rules and resuming follow from its
declaration."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.experiments.invariants import SmallRuns, invariants_of, results
from fedproto_app.node.orders import require_allowed
from fedproto_app.node.site import read_site
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.checkpoint import newest_checkpoint
from fedproto_app.settings import settings_from
from fedproto_app.trust.privacy_loss import privacy_plan

METHODS = ["own_methods:PENALTY", "own_methods:PULL"]
MASKED = {"aggregation.secure": True, "aggregation.secure-minimum": 2}
NOISED = {
    "privacy.mechanism": "gaussian",
    "privacy.noise-multiplier": 1.0,
    "privacy.metrics": "exact",
}
TRIMMED = {"aggregation.rule": "trimmed-mean", "aggregation.hostile-share": 0.2}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shutil.copy(Path(__file__).parent / "helpers" / "own_methods.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_methods", None)


def numbers(runs: SmallRuns, label: str, **changes: Any) -> np.ndarray:
    values = results(runs.run(label, 3, **changes))
    return np.array([values[name] for name in sorted(values)])


@pytest.mark.parametrize("method", METHODS)
def test_the_invariants_hold(tmp_path: Path, method: str) -> None:
    """One invariant: a killed and resumed run ends the same."""
    runs = SmallRuns("forecasting", method, tmp_path, rounds=2)
    deviations = {name: check(runs) for name, check in invariants_of(runs).items()}
    assert {name: deviation for name, deviation in deviations.items() if not deviation.held} == {}


@pytest.mark.parametrize("method", METHODS)
def test_masks_change_nothing_and_noise_and_rules_change_the_models(
    tmp_path: Path, method: str
) -> None:
    runs = SmallRuns("forecasting", method, tmp_path)
    plain, masked = numbers(runs, "plain"), numbers(runs, "masked", **MASKED)
    np.testing.assert_allclose(masked, plain, rtol=1e-3, atol=1e-3)
    killed = numbers(runs, "killed", **MASKED, deaths=(9, 14))
    np.testing.assert_array_equal(killed, masked)
    for label, changes in (("noised", NOISED), ("trimmed", TRIMMED)):
        changed = numbers(runs, label, **changes)
        assert np.isfinite(changed).all(), label
        assert not np.allclose(changed, plain, rtol=1e-4), label


def test_costs_equal_the_declared_costs(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", "own_methods:PULL", tmp_path)
    first = read_rounds(runs.run("plain", 3))[0]
    assert first["parameters_up"] == 8 * 24 * 16  # clients, period, width


def changed(**fields: Any) -> dict[str, Any]:
    return {f"changed.{name}": value for name, value in fields.items()}


def test_a_changed_declaration_changes_costs_and_checkpoint(tmp_path: Path) -> None:
    runs = SmallRuns("forecasting", "own_methods:CHANGED", tmp_path)
    values = {}
    for name, fields in (
        ("as-it-is", {}),
        ("counts", {"counts": True}),
        ("remembers", {"remember": "latest"}),
    ):
        run = runs.run(name, 2, **changed(**fields))
        values[name] = read_rounds(run)[0]["parameters_up"]
        checkpoint, _ = newest_checkpoint(run / "checkpoint")
        names = set(checkpoint.strategy)
        assert ("mine" in names) == (name == "remembers")
        assert ("fresh/values/count" in names) == (name == "counts")
    assert values["counts"] == values["as-it-is"] + 8  # clients
    assert values["remembers"] == values["as-it-is"]


@pytest.mark.parametrize(
    ("fields", "settings", "reason"),
    [
        ({"combine": "each"}, MASKED, "looks at each client's prototype"),
        ({"remember": "latest"}, MASKED, "remembers each client's latest prototype"),
        ({"clip": ""}, NOISED, "how far one client can change the prototype that it sends"),
        ({"combine": "each"}, TRIMMED, "makes no mean of its clients'"),
    ],
)
def test_a_changed_declaration_changes_the_possible_protection(
    fields: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    run = {"method": "own_methods:CHANGED", **settings}
    privacy_plan(settings_from(run))
    with pytest.raises(SettingsError, match=reason):
        privacy_plan(settings_from({**run, **changed(**fields)}))


@pytest.mark.parametrize("consent", ["", "tells-classes"])
def test_a_changed_declaration_changes_the_needed_consent(tmp_path: Path, consent: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[data]\nsource = "synthetic-traffic"\n[code]\nown = ["own_methods:CHANGED"]\n')
    run = {"method": "own_methods:CHANGED", **changed(consent=consent)}
    site = read_site({"site": str(file)}, deployed=True)
    if not consent:
        require_allowed(settings_from(run), site)
        return
    with pytest.raises(SettingsError, match=r"sends its mean day, .* set tells-classes = true"):
        require_allowed(settings_from(run), site)


def test_a_changed_declaration_changes_the_memory_that_a_rule_needs(tmp_path: Path) -> None:
    """A rule needs all clients' models at the server."""
    estimates = []
    for shared in ("encoder.", "encoder.close."):
        small = {**TRIMMED, "aggregation.most-megabytes": 1, "model.representation-dim": 128}
        runs = SmallRuns("forecasting", "own_methods:CHANGED_MODEL", tmp_path / shared, **small)
        with pytest.raises(
            FederationError, match=r"the models of 8 clients, (\d+) values"
        ) as error:
            runs.run("run", 2, **changed(shared=shared))
        estimates.append(int(re.search(r"(\d+) values", str(error.value))[1]))  # type: ignore[index]
    assert estimates[0] != estimates[1]


def test_a_method_without_a_declaration_is_shown_an_example(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"(?s)SilentLearner does not declare .*def sends\("):
        SmallRuns("forecasting", "own_methods:SILENT", tmp_path).run("run", 1)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("UNDECLARED", r"sends 'secret' of shape \(1, 16\), which it does not declare"),
        ("MISSHAPEN", r"'mine'.*\(8, 1, 16\).*\(8, 24, 16\)"),
    ],
)
def test_undeclared_arrays_are_refused_at_the_first_reply(
    tmp_path: Path, method: str, message: str
) -> None:
    with pytest.raises(FederationError, match=message):
        SmallRuns("forecasting", f"own_methods:{method}", tmp_path).run("run", 1)
