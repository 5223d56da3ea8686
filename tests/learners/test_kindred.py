"""Kindred's client half alone: the arrays it sends, and its fits for given priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.maths.ridge import symmetric
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.strategies.common.learner import new_cohort
from fedproto_app.strategies.kindred.learner import KindredLearner, extent
from fedproto_app.tasks.forecasting.task import mean_day
from tests.learners.tiny_cohort import NAMES, PERIOD, tiny_cohort, tiny_learner, tiny_windows, train

GUIDANCE = Guidance()
SMALL = {"data.calendar": "phase", "kindred.features": 3}


def test_the_mean_day_is_that_of_the_train_targets_that_are_there() -> None:
    learner = tiny_learner("kindred", **SMALL)
    values = np.tile([0.0, 1.0, 2.0, 3.0], 10)
    complete = make_windows(ClientSeries("a", values), learner.task.settings.data)
    holed = make_windows(
        ClientSeries("b", np.r_[values[:20], np.nan, values[21:]]), learner.task.settings.data
    )
    days = mean_day(learner.task.gather([complete, holed], 1))
    for client, day in zip((complete, holed), days, strict=True):
        expected = (np.arange(PERIOD) - client.mean) / client.std
        np.testing.assert_allclose(day, expected, atol=1e-6)


def test_the_means_of_a_step_are_of_the_samples_that_have_its_target() -> None:
    learner = tiny_learner("kindred", **SMALL, **{"data.horizon": 2})
    data = learner.task.settings.data
    values = np.random.default_rng(3).normal(size=40)
    complete = make_windows(ClientSeries("a", values), data)
    holed = make_windows(ClientSeries("b", np.r_[values[:20], np.nan, values[21:]]), data)
    cohort = replace(tiny_cohort(learner), samples=learner.task.gather([complete, holed], 1))
    context = learner.context(GUIDANCE, cohort)
    used = np.sort(holed.batches.ravel())
    inputs, targets = cohort.samples.inputs, cohort.samples.targets
    features = learner.task.encode(cohort.parameters, inputs)[1].double().numpy()
    residuals = targets[1].double().numpy() - features[:, learner.model.newest, None]
    np.testing.assert_allclose(  # one of its targets is there in every sample
        context.own.gram[1], features[used].T @ features[used] / len(used), rtol=1e-6, atol=1e-9
    )
    lacking = {step: used[~holed.present[used, step]] for step in range(2)}
    assert [len(rows) for rows in lacking.values()] == [1, 1]
    for step, lacking_rows in lacking.items():
        present_rows = np.setdiff1d(used, lacking_rows)
        expected = features[present_rows].T @ residuals[present_rows, step] / len(present_rows)
        np.testing.assert_allclose(context.own.moment[1, :, step], expected, rtol=1e-6, atol=1e-9)


def test_scattered_gaps_do_not_spoil_a_day_ahead() -> None:
    """With a tenth of the values missing, hardly a sample has all of its targets."""
    steps = np.arange(24 * 40)
    errors = {}
    for method in ("kindred", "analytic"):
        learner = tiny_learner(
            method,
            **{
                "data.period": 24,
                "data.horizon": 24,
                "data.calendar": "phase",
                f"{method}.sharing": "none",
            },
        )
        rng = np.random.default_rng(0)
        clients = []
        for name in NAMES:
            values = np.sin(steps * 2 * np.pi / 24) + 0.3 * rng.normal(size=len(steps))
            values[rng.random(len(steps)) < 0.1] = np.nan
            clients.append(make_windows(ClientSeries(name, values), learner.task.settings.data))
        initial = learner.initial_parameters()
        parameters = {name: torch.stack([value] * 2) for name, value in initial.items()}
        clients.sort(key=lambda client: -len(client.batches))
        samples = learner.task.gather(clients, 1)
        _, _, cohort = train(learner, GUIDANCE, new_cohort(learner, parameters, samples, 1))
        mse = learner.task.evaluate(cohort.parameters, cohort.samples)[Metric("mse")]
        errors[method] = float(np.mean(mse))
    assert errors["kindred"] < 1.25 * errors["analytic"]


def test_validation_samples_lie_between_those_of_train_and_test() -> None:
    learner = tiny_learner("kindred", **SMALL)
    client = tiny_windows(learner.task.settings)[0]
    span = extent(tiny_cohort(learner).samples.is_validation)
    assert span == (client.validation.start, client.validation.stop)


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
    for part_sum, complete_sum in zip(parts.own, complete_context.own, strict=True):
        torch.testing.assert_close(
            part_sum, complete_sum, rtol=1e-6, atol=1e-7
        )  # features are float32
    read.clear()
    learner.conclude(cohort, parts)  # one client after the other, then the training error
    assert read[:-1] == [1] * (end - first) * len(NAMES)
    torch.testing.assert_close(cohort.parameters[COEFFICIENTS], fitted)


def test_a_prior_that_is_the_truth_is_believed_and_a_lie_is_not() -> None:
    """y is the value before the newest one; the own samples are few and noisy."""
    learner = tiny_learner("kindred", **{**SMALL, "kindred.features": 0})
    rng = np.random.default_rng(5)
    values = np.tile(rng.normal(size=2), 20) + rng.normal(0, 0.3, 40)
    client = make_windows(ClientSeries("a", values), learner.task.settings.data)
    samples = learner.task.gather([client], 1)
    cohort = tiny_cohort(learner)
    first = {name: value[:1] for name, value in cohort.parameters.items()}
    cohort = replace(cohort, parameters=first, samples=samples)
    _, sent_arrays, cohort = train(learner, GUIDANCE, cohort)
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
            "data.lags": f"6,{3 * PERIOD}",
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
    expected = [newest, columns[PERIOD], (columns[PERIOD] + columns[2 * PERIOD]) / 2]
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
