"""Kindred: a client's fits, both halves together against NumPy, and what the server accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round, Total
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import lookback, make_windows
from fedproto_app.maths.divergence import divergence_from
from fedproto_app.maths.ridge import symmetric, triangle, triangle_size
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.settings import settings_from
from fedproto_app.strategies.kindred import strategy
from fedproto_app.strategies.kindred.clusters import Clusters
from fedproto_app.strategies.kindred.learner import (
    KindredLearner,
    Means,
    RandomFeatureForecaster,
    course_of_weekdays,
    extent,
)
from fedproto_app.strategies.kindred.strategy import ROWS_AT_ONCE, kinship
from fedproto_app.tasks.forecasting.task import mean_day
from tests.helpers.bad_replies import change_arrays, on_reply
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes
from tests.helpers.tiny_cohort import (
    NAMES,
    cohort_of,
    complete_and_holed,
    tiny_cohort,
    tiny_learner,
    train,
)
from tests.helpers.tiny_cohort import PERIOD as TINY_PERIOD
from tests.strategies.kindred_pair import (
    CLIENTS,
    FEATURES,
    PERIOD,
    KindredPair,
    by_hand,
    tiny_series,
)
from tests.strategies.server_half import NODE

# --- the client's half ---------------------------------------------------------------------------


GUIDANCE = Guidance()
SMALL = {"data.calendar": "phase", "kindred.features": 3}


def test_the_mean_day_is_that_of_the_train_targets_that_are_there() -> None:
    learner = tiny_learner("kindred", **SMALL)
    values = np.tile([0.0, 1.0, 2.0, 3.0], 10)
    clients = complete_and_holed(learner.task.settings, values)
    for client, day in zip(clients, mean_day(learner.task.gather(clients, 1)), strict=True):
        expected = client.scale.standardised(np.arange(TINY_PERIOD))
        np.testing.assert_allclose(day, expected, atol=1e-6)


def test_the_means_of_a_step_are_of_the_samples_that_have_its_target() -> None:
    learner = tiny_learner("kindred", **SMALL, **{"data.horizon": 2})
    values = np.random.default_rng(3).normal(size=40)
    complete, holed = complete_and_holed(learner.task.settings, values)
    cohort = cohort_of(learner, [complete, holed])
    context = learner.context(GUIDANCE, cohort)
    used = np.sort(holed.batches.ravel())
    inputs, targets = cohort.samples.inputs, cohort.samples.targets
    features = learner.task.encode(cohort.parameters, inputs)[1].double().numpy()
    residuals = targets[1].double().numpy() - features[:, learner.model.newest, None]
    np.testing.assert_allclose(  # one of its targets is there in every sample
        context.means.gram[1], features[used].T @ features[used] / len(used), rtol=1e-6, atol=1e-9
    )
    lacking = {step: used[~holed.present[used, step]] for step in range(2)}
    assert [len(rows) for rows in lacking.values()] == [1, 1]
    for step, lacking_rows in lacking.items():
        present_rows = np.setdiff1d(used, lacking_rows)
        expected = features[present_rows].T @ residuals[present_rows, step] / len(present_rows)
        np.testing.assert_allclose(context.means.moment[1, :, step], expected, rtol=1e-6, atol=1e-9)


def test_long_histories_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner("kindred", **SMALL, **{"data.horizon": 2})
    assert isinstance(learner, KindredLearner)
    cohort = tiny_cohort(learner)
    first, end = extent(cohort.samples.is_validation)
    complete_context = learner.context(GUIDANCE, cohort)
    learner.conclude(cohort, complete_context)
    fitted = cohort.parameters[COEFFICIENTS].clone()

    read: list[int] = []
    encode = learner.task.encode

    def watched(parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        read.append(inputs.shape[1])
        return encode(parameters, inputs)

    bound = 3 * len(NAMES) * learner.model.representation_dim
    monkeypatch.setattr("fedproto_app.strategies.kindred.learner.VALUES_AT_ONCE", bound)
    monkeypatch.setattr(learner.task, "encode", watched)
    parts = learner.context(GUIDANCE, cohort)
    assert max(read) == 3
    assert sum(read) < first  # no other samples than those of train
    for part_sum, complete_sum in zip(parts.means, complete_context.means, strict=True):
        torch.testing.assert_close(
            part_sum, complete_sum, rtol=1e-6, atol=1e-7
        )  # features are float32
    read.clear()
    learner.conclude(cohort, parts)  # one client after the other, then the training error
    assert read[:-1] == [1] * (end - first) * len(NAMES)
    torch.testing.assert_close(cohort.parameters[COEFFICIENTS], fitted)


def test_a_prior_that_is_the_truth_is_believed_and_a_lie_is_not() -> None:
    """y is the value before the newest, and a client's samples are few and noisy."""
    learner = tiny_learner("kindred", **{**SMALL, "kindred.features": 0})
    rng = np.random.default_rng(5)
    values = np.tile(rng.normal(size=2), 20) + rng.normal(0, 0.3, 40)
    client = make_windows(ClientSeries("a", values), learner.task.settings.data)
    _, sent_arrays, cohort = train(learner, GUIDANCE, cohort_of(learner, [client]))
    assert learner.receive(cohort, GUIDANCE) == []  # nothing came
    alone = cohort.parameters[COEFFICIENTS].clone()
    criterion = Metric("mse")
    before = learner.evaluate(cohort, GUIDANCE)[criterion][0]

    width = symmetric(torch.from_numpy(sent_arrays["gram"]), alone.shape[2]).shape[-1]
    truth = torch.zeros(1, 1, 1, width)
    truth[..., 0] = 1.0  # the first feature is the older value less the newest
    gram = torch.eye(width)[torch.triu_indices(width, width).unbind()].expand(1, 1, -1)
    for moment, better in ((truth, True), (-300 * truth, False)):
        arrays = {"gram": gram.numpy().copy(), "moment": moment.numpy()}
        guidance = Guidance(arrays, ["a"])
        assert learner.receive(cohort, guidance) == [0]
        after = learner.evaluate(cohort, GUIDANCE)[criterion][0]
        if better:
            assert after < 0.95 * before
        else:
            torch.testing.assert_close(cohort.parameters[COEFFICIENTS], alone, rtol=0.1, atol=0.05)
            assert after == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize(("method", "horizon"), [("kindred", 1), ("kindred", 2), ("analytic", 2)])
def test_naive_forecasts_are_models_too(method: str, horizon: int) -> None:
    """A lag that is no period, and one of more periods than the mean takes, are no part of them."""
    learner = tiny_learner(
        method,
        **{
            **SMALL,
            "data.horizon": horizon,
            "data.periodic-window": 2,
            "data.lags": f"6,{3 * TINY_PERIOD}",
        },
    )
    task = learner.task
    samples = tiny_cohort(learner).samples.inputs[:1, :20]
    close, steps = task.settings.data.close_window, torch.arange(horizon)
    columns = {
        far: samples[..., close + number * horizon + steps].double()
        for number, far in enumerate(task.settings.data.distances)
    }
    newest = samples[..., close - 1 :][..., :1].double().expand(-1, -1, horizon)
    expected = [newest, columns[TINY_PERIOD], (columns[TINY_PERIOD] + columns[2 * TINY_PERIOD]) / 2]
    weights = task.naive_forecasts()
    if isinstance(learner, KindredLearner):
        plain = learner.model.repeating(weights).transpose(1, 2)  # (3, H, plain)
        coefficients = torch.zeros(3, horizon, learner.model.representation_dim).double()
        coefficients[..., : plain.shape[2]] = plain
    else:
        coefficients = task.layout.regressor_copies(weights)
    for forecast, values in zip(coefficients, expected, strict=True):
        actual = task.forecast({COEFFICIENTS: forecast[None].float()}, samples)
        torch.testing.assert_close(actual.double(), values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1e12, 1e30, float("nan")])
def test_a_prior_of_huge_values_does_not_spoil_the_model(size: float) -> None:
    learner = tiny_learner("kindred", **SMALL)
    cohort = tiny_cohort(learner)
    _, sent_arrays, cohort = train(learner, GUIDANCE, cohort)
    alone = learner.evaluate(cohort, GUIDANCE)[Metric("mse")]
    arrays = {name: sent_arrays[name][:, None] * size for name in ("gram", "moment")}
    guidance = Guidance(arrays, NAMES)
    assert learner.receive(cohort, guidance) == [0, 1]
    assert cohort.parameters[COEFFICIENTS].isfinite().all()
    after = learner.evaluate(cohort, GUIDANCE)[Metric("mse")]
    # Scaled alike, both are the client's own solution once more.
    assert after == pytest.approx(alone, rel=0.5)


def test_penalties_out_of_order_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"kindred.largest-penalty = 0.0001: must be above"):
        tiny_learner("kindred", **{"kindred.largest-penalty": 1e-4})


def test_long_validation_parts_are_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner("analytic", **{"data.horizon": 2, "analytic.sharing": "none"})
    cohort = tiny_cohort(learner)
    context = learner.context(GUIDANCE, cohort)
    learner.conclude(cohort, context)
    fitted = cohort.parameters[COEFFICIENTS].clone()
    monkeypatch.setattr("fedproto_app.strategies.analytic.learner.VALUES_AT_ONCE", 1)
    learner.conclude(cohort, context)
    torch.testing.assert_close(cohort.parameters[COEFFICIENTS], fitted)


def test_fits_without_waves_have_none() -> None:
    """Features of values and calendar alone: every penalty of the waves is left out."""
    learner = tiny_learner("kindred", **{**SMALL, "kindred.features": 0})
    cohort = tiny_cohort(learner)
    learner.conclude(cohort, learner.context(GUIDANCE, cohort))
    assert cohort.parameters[COEFFICIENTS].isfinite().all()
    assert cohort.parameters[COEFFICIENTS].shape[2] == learner.model.plain_width


def test_each_weekday_has_a_course_of_its_own() -> None:
    """A quarter of the period on the third day: angles π/2, π, 3π/2 and 2π."""
    layout = WindowLayout(close=1, distances=1, horizon=2, period=4, times=2)
    sample = torch.tensor([[9.0, 9.0, 9.0, 1.0, 2.0]])
    expected = torch.zeros(1, 7, 8)
    expected[0, 2] = torch.tensor([0.0, -1.0, 0.0, 1.0, 1.0, 0.0, -1.0, 0.0])
    courses = course_of_weekdays(layout.blocks(sample))
    torch.testing.assert_close(courses, expected.flatten(1), rtol=0, atol=1e-6)
    model = RandomFeatureForecaster(layout, 2, torch.Generator().manual_seed(0), courses=True)
    features = model.encode({}, sample)[0]
    assert len(features) == model.representation_dim == 3 + 4 + 7 + 56 + 2 * 2
    assert torch.equal(features[3 + 4 + 7 : -4], courses[0])


@pytest.mark.parametrize(
    ("changes", "courses"),
    [
        ({"data.horizon": 2, "data.calendar": "week"}, 56),
        ({"data.horizon": 2, "data.calendar": "week", "data.history": 13}, 0),
        ({"data.horizon": 2, "data.calendar": "phase"}, 0),
        ({"data.calendar": "week"}, 0),
    ],
)
def test_courses_are_for_several_steps_where_models_learn_weeks(
    changes: Mapping[str, Any], courses: int
) -> None:
    learner = tiny_learner("kindred", **changes)
    layout = learner.task.layout
    assert learner.model.plain_width == layout.values + layout.beside_width + courses


# --- both halves ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("horizon", "lags"), [(1, ""), (3, ""), (1, "5,28"), (3, "28")])
def test_client_and_server_together_are_the_formulas(horizon: int, lags: str) -> None:
    series = tiny_series()
    pair = KindredPair(**{"data.horizon": horizon, "data.lags": lags})
    fitted = pair.fitted(series)
    for row, expected in enumerate(by_hand(pair, series)):
        np.testing.assert_allclose(fitted[row].T, expected, rtol=1e-4, atol=1e-5)
    alone = pair.cohort(series).parameters[COEFFICIENTS]
    assert all((fitted[row] - alone[row]).abs().max() > 1e-2 for row in range(len(series)))


def test_on_the_embedded_traffic_forecasts_agree_with_numpy_to_a_millionth() -> None:
    """Both forecast the clients' whole week of training, on the standardised scale."""
    pair = KindredPair(**{"data.period": 24, "data.periodic-window": 3, "data.history": 7})
    traffic = load_series(settings_from({"data.max-clients": 4, "data.synthetic.days": 28}).data)
    series = dict(zip(CLIENTS, (client.values for client in traffic), strict=True))
    fitted = pair.fitted(series)
    for row, expected in enumerate(by_hand(pair, series)):
        inputs = torch.from_numpy(pair.windows(series)[row].inputs)[None]
        features = pair.learner.task.encode({}, inputs)[0].double().numpy()
        ours = features @ fitted[row].T.double().numpy()
        np.testing.assert_allclose(ours, features @ expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("horizon", [1, 3])
def test_every_value_sent_is_named_and_of_a_known_size(horizon: int) -> None:
    pair = KindredPair(**{"data.horizon": horizon})
    arrays = pair.message(pair.cohort(tiny_series()))
    width = CLOSE_AND_DISTANT + 2 * (horizon - 1) + PERIOD + 2 * FEATURES
    shapes = {"prototype": (PERIOD,), "gram": (triangle_size(width),), "moment": (horizon, width)}
    assert {name: array.shape[1:] for name, array in arrays.items()} == shapes
    assert pair.strategy.expected(Round(1)).per_client == shapes


CLOSE_AND_DISTANT = 4  # two close values, two distances


@pytest.mark.parametrize("horizon", [1, 3])
def test_validation_only_weighs_and_test_does_nothing(horizon: int) -> None:
    series = tiny_series()
    pair = KindredPair(**{"data.horizon": horizon})
    parts = pair.windows(series)[0]
    ends = [lookback(pair.settings.data) + end for end in (parts.train_end, parts.validation_end)]
    message, fitted = pair.message(pair.cohort(series)), pair.fitted(series)
    for end, weighs in zip(ends, (True, False), strict=True):
        noise = np.random.default_rng(1).normal(50, 30, 100 - end)
        changed = {name: np.r_[values[:end], noise] for name, values in series.items()}
        for name, array in pair.message(pair.cohort(changed)).items():
            np.testing.assert_array_equal(array, message[name])
        refitted = KindredPair(**{"data.horizon": horizon}).fitted(changed)
        assert torch.equal(refitted, fitted) is not weighs


def test_sharing_says_whose_data_stand_behind_a_client() -> None:
    series = tiny_series()
    fits = {}
    for sharing in ("kin", "common", "random"):
        pair = KindredPair(**{"kindred.sharing": sharing})
        fits[sharing] = pair.fitted(series)
    assert not torch.equal(fits["kin"], fits["common"])
    assert not torch.equal(fits["kin"], fits["random"])
    repeated = KindredPair(**{"kindred.sharing": "random"})
    assert torch.equal(repeated.fitted(series), fits["random"])
    # Priors with equal weights are the same, and priors by similarity belong to other clients.
    kin, random = KindredPair(), repeated
    kin.fitted(series)
    kin_priors, random_priors = kin.priors().arrays["gram"], random.priors().arrays["gram"]
    np.testing.assert_array_equal(kin_priors[:, 1], random_priors[:, 1])
    assert not np.allclose(kin_priors[:, 0], random_priors[:, 0])


GROUPS = {"a": "early", "b": "early", "c": "late", "late": "late"}


def grouped(sharing: str, least: int = 2) -> KindredPair:
    """The pair whose clients name their groups."""
    pair = KindredPair(**{"kindred.sharing": sharing, "aggregation.secure-minimum": least})
    facts = pair.strategy.federation.members.facts
    assert isinstance(facts, dict)
    facts |= {key: replace(facts[key], group=GROUPS[key.client]) for key in facts}
    return pair


@pytest.mark.parametrize(
    ("sharing", "least", "others_of"),
    [
        ("common", 2, [{"a": "bcl", "b": "acl", "c": "abl", "late": "abc"}]),
        # Groups are sent in the order of their names, and each client gets its own.
        (
            "groups",
            2,
            [
                {"a": "bcl", "b": "acl", "c": "abl", "late": "abc"},
                {"a": "b", "b": "a"},
                {"c": "l", "late": "c"},
            ],
        ),
        ("groups", 3, [{"a": "bcl", "b": "acl", "c": "abl", "late": "abc"}]),
    ],
)
def test_a_client_takes_its_own_part_out_of_totals(
    monkeypatch: pytest.MonkeyPatch, sharing: str, least: int, others_of: list[dict[str, str]]
) -> None:
    pair = grouped(sharing, least)
    cohort = pair.cohort(tiny_series())
    message = pair.message(cohort)
    assert set(message) == {"gram", "moment"}
    pair.report(CLIENTS, message)
    received: dict[str, list[Means]] = {}

    def fit(cohort: Any, row: int, context: Any, priors: list[Means]) -> None:
        received[cohort.names[row]] = priors

    monkeypatch.setattr(pair.learner, "_fit", fit)
    pair.learner.receive(cohort, pair.priors())
    means = pair.learner.context(Guidance(), cohort).means
    rows = dict(zip("abcl", range(4), strict=True))
    for client in CLIENTS:
        expected = [of_set[client] for of_set in others_of if client in of_set]
        for prior, lenders in zip(received[client], expected, strict=True):
            chosen = [rows[lender] for lender in lenders]
            expected_gram = means.gram[chosen].mean(dim=0)
            torch.testing.assert_close(prior.gram, expected_gram, rtol=0, atol=1e-6)
            expected_moment = means.moment[chosen].mean(dim=0)
            torch.testing.assert_close(prior.moment, expected_moment, rtol=0, atol=1e-6)


def test_a_robust_rule_gives_no_total_to_subtract_from() -> None:
    with pytest.raises(
        SettingsError, match=r"'common': aggregation.rule = 'median' gives no total"
    ):
        KindredPair(**{"kindred.sharing": "common", "aggregation.rule": "median"})


def test_a_masked_sum_that_no_clients_can_have_is_not_used() -> None:
    pair = grouped("groups")
    message = pair.message(pair.cohort(tiny_series()))
    values = {name: array.sum(axis=0, dtype=np.float64) for name, array in message.items()}
    for factor, used in ((1.0, True), (1e4, False)):
        part = Total({name: factor * value for name, value in values.items()}, 4)
        keys = [ClientKey(client, NODE) for client in CLIENTS[:3]]
        pair.strategy.answered([NODE], keys, evaluation=False)
        pair.strategy.received.take_total(part)
        assert pair.priors().clients == (CLIENTS[:3] if used else [])
        faults = [r.reason for r in pair.strategy.federation.history.log.refused]
        assert any("masked sum of all nodes: its means cannot" in f for f in faults) is not used


def test_sharing_nothing_sends_nothing_and_is_final_at_once() -> None:
    pair = KindredPair(**{"kindred.sharing": "none"})
    assert pair.message(pair.cohort(tiny_series())) == {}
    assert pair.strategy.expected(Round(1)).per_client == {}
    assert pair.strategy.final_after_training


def test_a_client_alone_in_its_federation_keeps_its_own_fit() -> None:
    series = {"a": tiny_series()["a"]}
    pair = KindredPair()
    alone = pair.cohort(series).parameters[COEFFICIENTS]
    assert torch.equal(pair.fitted(series), alone)
    assert pair.priors().clients == []
    assert alone.abs().sum() > 0


def test_who_told_nothing_is_left_as_it_was_and_a_newcomer_gets_a_prior() -> None:
    series = tiny_series()
    pair = KindredPair()
    cohort = pair.cohort(series)
    alone = cohort.parameters[COEFFICIENTS].clone()
    message = pair.message(cohort)
    first = {name: array[:3] for name, array in message.items()}
    pair.report(CLIENTS[:3], first)
    assert pair.learner.receive(cohort, pair.priors()) == [0, 1, 2]
    coefficients = cohort.parameters[COEFFICIENTS]
    assert torch.equal(coefficients[3], alone[3])
    assert not torch.equal(coefficients[:3], alone[:3])
    pair.report(["late"], {name: array[3:] for name, array in message.items()})
    assert pair.learner.receive(cohort, pair.priors()) == [0, 1, 2, 3]
    assert torch.equal(cohort.parameters[COEFFICIENTS], KindredPair().fitted(series))


def test_the_order_of_reports_does_not_matter_and_a_restart_changes_nothing() -> None:
    pair, reordered = KindredPair(), KindredPair()
    message = pair.message(pair.cohort(tiny_series()))
    pair.report(CLIENTS, message)
    for row in (2, 0, 3, 1):
        reordered.report([CLIENTS[row]], {name: array[[row]] for name, array in message.items()})
    restored = KindredPair()
    restored.strategy.restore(reordered.strategy.state())
    for name, array in pair.priors().arrays.items():
        np.testing.assert_array_equal(array, reordered.priors().arrays[name])
        np.testing.assert_array_equal(array, restored.priors().arrays[name])
    assert KindredPair().strategy.state() == {}


def test_the_findings_are_the_divergence_of_the_mean_days() -> None:
    pair = KindredPair()
    assert pair.strategy.findings() == {}
    message = pair.message(pair.cohort(tiny_series()))
    pair.report(CLIENTS, message)
    artefact = pair.strategy.findings()["divergence"]
    np.testing.assert_array_equal(artefact["prototypes"][:, 0], message["prototype"])
    apart = artefact["divergence"]  # a and b are early in the day, c and late are not
    assert max(apart[0, 1], apart[2, 3]) < apart[:2, 2:].min()


def falsify(arrays: Arrays, name: str, change: Callable[[Any], Any]) -> Arrays:
    """The same with another array of the third client."""
    changed = arrays[name].copy()
    changed[2] = change(changed[2])
    return {**arrays, name: changed}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("prototype", lambda day: day * 1e30, "prototype holds"),
        ("prototype", lambda day: day - 101, "prototype holds"),
        ("gram", lambda packed: packed * 1e30, "a mean square is"),
        ("gram", lambda packed: -packed, "negative"),
        ("gram", np.zeros_like, "of no sample"),
        ("gram", lambda packed: np.r_[packed[0], 1e4, packed[2:]], "no samples have such products"),
        ("gram", lambda packed: indefinite(packed), "no samples have such products"),
        ("moment", lambda products: products + 1e30, "products with the targets"),
        ("moment", lambda products: products + 500, "products with the targets"),
    ],
)
def test_means_that_cannot_be_true_are_refused(name: str, change: Any, reason: str) -> None:
    pair = KindredPair()
    message = pair.message(pair.cohort(tiny_series()))
    refused = pair.report(CLIENTS, falsify(message, name, change))
    assert set(refused) == {"c"}
    assert reason in refused["c"]
    assert pair.priors().clients == ["a", "b", "late"]
    honest = KindredPair()
    honest.report(["a", "b", "late"], {key: array[[0, 1, 3]] for key, array in message.items()})
    for key, array in pair.priors().arrays.items():
        np.testing.assert_array_equal(array, honest.priors().arrays[key])


def indefinite(packed: Any) -> Any:
    """Return products that are possible for every two of three values, but not for all three."""
    width = CLOSE_AND_DISTANT + PERIOD + 2 * FEATURES
    matrix = symmetric(torch.from_numpy(packed), width)
    matrix[:3] = matrix[:, :3] = 0
    matrix[:3, :3] = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    return triangle(matrix).numpy()


# What a node can tell that passes, at its worst: the products [D, D] and those with the targets.
# bᵀA⁻¹b may be 400, so each of D equal products with the diagonal s may be 20·√(s/D).
WIDTH = 7 + 24 + 2 * 20
LIES = {
    "largest": (400 * torch.eye(WIDTH), 399.0 * WIDTH**-0.5),
    "plausible": (torch.eye(WIDTH), 19.9 * WIDTH**-0.5),
    "one-direction": (torch.full((WIDTH, WIDTH), 399.0), 399.0),
    "small": (1e-4 * torch.eye(WIDTH), 0.199 * WIDTH**-0.5),
}


def test_a_liar_takes_from_the_others_what_they_gain_and_little_more(tmp_path: Path) -> None:
    def errors(name: str, tamper: Any = None, **changes: Any) -> Any:
        small = {"data.calendar": "phase", "kindred.features": 20, "output.name": name}
        settings = small_settings(tmp_path, method="kindred", **small, **changes)
        nodes = synthetic_nodes(8, tmp_path / name)
        folder, _ = run_locally(settings, nodes, tamper=tamper)
        [line] = read_rounds(folder.path)
        assert line["refused"] == []
        return read_clients(folder.path).by_client("mse")

    alone = errors("alone", **{"kindred.sharing": "none"})
    honest = errors("honest")
    assert np.mean(list(honest.values())) < np.mean(list(alone.values()))
    for name, (gram, moment) in LIES.items():

        def lie(arrays: Any, gram: Any = gram, moment: Any = moment) -> None:
            arrays["gram"][:] = triangle(gram).numpy()
            arrays["moment"][:] = moment

        with_liar = errors(name, on_reply(change_arrays(lie), server_round=1))
        for client, error in with_liar.items():
            assert error < 1.3 * max(alone[client], honest[client]), (name, client)
        assert np.mean(list(with_liar.values())) < 1.15 * np.mean(list(alone.values())), name


# --- the formulas ---------------------------------------------------------------------------------


APART = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])  # their median is 2


def of_two(first: float, second: float) -> list[float]:
    """softmax(−first, −second)."""
    total = math.exp(-first) + math.exp(-second)
    return [math.exp(-first) / total, math.exp(-second) / total]


def test_three_clients_by_hand() -> None:
    weights = kinship(APART, temperature=0.5)  # divided by 0.5 · 2 = 1
    (b, c), (a, also_c), (also_a, also_b) = of_two(1, 3), of_two(1, 2), of_two(3, 2)
    assert weights[0].tolist() == pytest.approx([0, b, c])
    assert weights[1].tolist() == pytest.approx([a, 0, also_c])
    assert weights[2].tolist() == pytest.approx([also_a, also_b, 0])
    assert kinship(APART, temperature=2.0)[0].tolist() == pytest.approx([0, *of_two(0.25, 0.75)])


def test_without_a_difference_all_others_are_alike() -> None:
    alike = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    assert kinship(APART, math.inf).tolist() == alike
    assert kinship(torch.zeros(3, 3), 0.5).tolist() == alike
    assert kinship(torch.tensor([[0.0, 0.7], [0.7, 0.0]]), 0.5).tolist() == [[0, 1], [1, 0]]


def test_many_equal_clients_do_not_hide_who_is_like_whom() -> None:
    """With eight dead and three live sensors more than half of the pairs do not differ."""
    divergence = torch.zeros(11, 11)
    divergence[8:, :8] = divergence[:8, 8:] = 0.4
    divergence[8, 9] = divergence[9, 8] = 0.1
    divergence[8:10, 10] = divergence[10, 8:10] = 0.3
    weights = kinship(divergence, 0.5)
    assert weights[8, 9] > 2 * weights[8, 10] > 2 * weights[8, 0] > 0


@pytest.mark.parametrize("temperature", [1e-3, 0.3, 10.0, math.inf])
def test_more_clients_than_rows_at_once_get_the_formulas_weights(temperature: float) -> None:
    clients = ROWS_AT_ONCE + 40
    draws = torch.rand(clients, clients, generator=torch.Generator().manual_seed(1))
    divergence = ((draws + draws.T) / 2).fill_diagonal_(0)
    before = divergence.clone()
    actual = kinship(divergence, temperature)
    assert torch.equal(divergence, before)
    apart = divergence.double().numpy()
    nearness = -apart / (temperature * np.median(apart[apart > 0]))
    np.fill_diagonal(nearness, -np.inf)
    np.testing.assert_allclose(actual, softmax(nearness, axis=1), rtol=1e-10)


def test_priors_by_clusters_are_the_formulas() -> None:
    """D[n, m] = D(n, centre of m) + D(m, centre of m), with an outlier and equal clients."""
    draws = np.random.default_rng(0)
    prototypes = torch.from_numpy(draws.normal(size=(90, 1, 6)) * draws.integers(0, 3, (90, 1, 1)))
    prototypes[0] = torch.tensor([40.0, 0, 0, 0, 0, 0])
    values = torch.from_numpy(draws.normal(size=(90, 5)))
    clusters = Clusters(prototypes, 0.01, draws)
    assert len(set(clusters.labels.tolist())) < clusters.count == 64
    apart = divergence_from(prototypes, clusters.centres).double()[:, clusters.labels]
    nearness = -(apart + apart.diagonal()) / 0.01
    nearness.fill_diagonal_(-math.inf)
    means = clusters.sums(values[:50], slice(50)) + clusters.sums(values[50:], slice(50, 90))
    rows = torch.tensor([3, 0, *range(10, 90)])
    torch.testing.assert_close(
        clusters.priors(means, values[rows], rows), (nearness.softmax(dim=1) @ values)[rows]
    )


@pytest.mark.parametrize("sharing", ["kin", "random"])
def test_clusters_of_one_client_give_the_priors_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, sharing: str
) -> None:
    pair = KindredPair(**{"kindred.sharing": sharing})
    pair.fitted(tiny_series())
    expected = pair.priors()
    monkeypatch.setattr(strategy, "MOST_IN_PAIRS", 2)
    monkeypatch.setattr(strategy, "ROWS_AT_ONCE", 2)
    actual = pair.priors()
    assert actual.clients == expected.clients
    for name in ("gram", "moment"):
        np.testing.assert_allclose(actual.arrays[name], expected.arrays[name], rtol=1e-5, atol=1e-7)


# Two close values and, for each of two targets, one a period before.
SAMPLE = torch.tensor([[[10.0, 12.0, 9.0, 7.0]]])
VALUES = [-2.0, -3.0, -5.0, 12.0]  # less the newest, 12, and that itself


def forecaster(times: int = 0, width: int = 3, seed: int = 0) -> RandomFeatureForecaster:
    layout = WindowLayout(close=2, distances=1, horizon=2, period=4, times=times)
    return RandomFeatureForecaster(layout, width, torch.Generator().manual_seed(seed))


def test_plain_features_by_hand() -> None:
    for times, numbers, calendar in (
        (0, [], [1.0]),
        (1, [3.0], [0.0, 0, 0, 1]),
        (2, [1.0, 5.0], [0.0, 1, 0, 0, *(float(day == 5) for day in range(7))]),
    ):
        model = forecaster(times)
        representation = model.encode({}, torch.cat([SAMPLE, torch.tensor([[numbers]])], dim=2))
        assert model.plain_width == 4 + len(calendar)
        assert representation[0, 0, : model.plain_width].tolist() == VALUES + calendar
        assert representation[0, 0, model.newest] == 12
        assert representation.shape == (1, 1, model.representation_dim)
        assert model.representation_dim == model.plain_width + 2 * 3
    linear = forecaster(width=0)
    assert linear.encode({}, SAMPLE).tolist() == [[[*VALUES, 1.0]]]


def test_waves_are_bounded_and_of_two_scales() -> None:
    width = 2000
    model = forecaster(width=width)
    samples = 1e3 * torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1))
    waves = model.encode({}, samples)[..., model.plain_width :]
    assert waves.abs().max() <= math.sqrt(2 / width) + 1e-7
    # Rahimi and Recht: products of waves are near the kernel exp(−σ²‖x − y‖² / 2), each scale's.
    near = torch.tensor([[[1.0, 2.0, 0.5, 1.5], [1.2, 1.5, 1.1, 1.0]]])
    first, second = model.encode({}, near)[0]
    plain = slice(0, model.newest + 1)
    distance = (first[plain] - second[plain]).square().sum() / 4
    for scale, block in ((1.0, slice(5, 5 + width)), (0.5, slice(5 + width, None))):
        kernel = math.exp(-(scale**2) * float(distance) / 2)
        assert float(first[block] @ second[block]) == pytest.approx(kernel, abs=0.06)


def test_waves_are_those_without_further_lags() -> None:
    """A lag of 28 steps is further than the three of whole periods, and first among them."""
    learners = [tiny_learner("kindred", **{**SMALL, "data.lags": lags}) for lags in ("", "28")]
    few, many = (learner.model for learner in learners)
    samples = torch.randn(1, 5, learners[1].task.layout.width, generator=torch.Generator())
    samples[..., -1] = 3.0  # the phase
    close = learners[1].task.layout.close
    fewer = torch.cat([samples[..., :close], samples[..., close + 1 :]], dim=-1)
    assert many.is_further.nonzero().tolist() == [[close - 1]]
    torch.testing.assert_close(
        many.encode({}, samples)[..., many.plain_width :],
        few.encode({}, fewer)[..., few.plain_width :],
    )


def test_a_forecast_is_the_newest_value_and_what_the_coefficients_add() -> None:
    model = forecaster()
    [start] = model.head_parameters(torch.Generator()).values()
    assert start.shape == (2, model.representation_dim)
    representation = model.encode({}, SAMPLE)
    assert model.predict({COEFFICIENTS: start[None]}, representation).tolist() == [[[12, 12]]]
    draws = torch.randn(1, *start.shape, generator=torch.Generator().manual_seed(2))
    expected = [12 + float(representation[0, 0] @ draws[0, step]) for step in range(2)]
    prediction = model.predict({COEFFICIENTS: draws}, representation)
    assert prediction[0, 0].tolist() == pytest.approx(expected, rel=1e-5)
