"""Values leave clipped and noised. Only the node's secret can reproduce the noise."""

from __future__ import annotations

import json
import math
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance, Order
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.node.folder import own_secret, secret_of_simulation
from fedproto_app.node.protection import Protection
from fedproto_app.settings import PrivacyPlan, PrivacySettings
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, Contribution
from fedproto_app.strategies.fedavg import FedAvgLearner
from fedproto_app.trust.discrete_noise import Noise
from fedproto_app.trust.privacy_ledger import PrivacyLedger, SitePrivacy
from tests.helpers.tiny_cohort import NAMES, global_model, tiny_cohort, tiny_learner

SECRET = b"s" * 32


def plan(sigma: float, **changes: Any) -> PrivacyPlan:
    settings = PrivacySettings(mechanism="gaussian", noise_multiplier=sigma, **changes)
    return PrivacyPlan(settings, sigma, 1)


def protection(
    folder: Path | None,
    sigma: float,
    learner: AnyLearner,
    secret: bytes = SECRET,
    session: str = "",
    **changes: Any,
) -> Protection:
    ledger = PrivacyLedger(folder, SitePrivacy()) if folder else None
    return Protection(plan(sigma, **changes), secret, ledger, learner, session)


def analytic_learner() -> AnyLearner:
    """A learner whose sums are of samples of length 2 at most."""
    privacy = {"mechanism": "gaussian", "clip": 2.0, "noise-multiplier": 1.0}
    return tiny_learner("analytic", **{f"privacy.{key}": value for key, value in privacy.items()})


def order(learner: AnyLearner) -> Order:
    return Order("run", "token", 1, NAMES, guidance=Guidance(global_model(learner)))


def prototypes(learner: AnyLearner, value: float = 1.0) -> tuple[Cohort, Contribution]:
    rows = np.full((2, 500, 8), value, np.float32)
    return tiny_cohort(learner), Contribution({"prototypes": rows})


def applied(
    guard: Protection, learner: AnyLearner, request: Order, value: float = 1.0
) -> Contribution:
    cohort, contribution = prototypes(learner, value)
    return guard.applied(contribution, cohort, request)


@pytest.mark.parametrize(("neighbours", "factor"), [("remove", 1), ("replace", 2)])
def test_rows_are_clipped_and_their_noise_covers_all_of_them(
    tmp_path: Path, neighbours: str, factor: int
) -> None:
    """Rows of length √8·2 are cut to C = 0.5. B = 500 of them move 0.5·√500, σ = 0.01 of it."""
    learner = tiny_learner("fuels")
    guard = protection(tmp_path, 0.01, learner, clip=0.5, neighbours=neighbours)
    noised = applied(guard, learner, order(learner), 2.0).arrays["prototypes"]
    noise = noised - 0.5 / math.sqrt(8)
    assert noise.std() == pytest.approx(factor * 0.01 * 0.5 * math.sqrt(500), rel=0.05)
    assert abs(noise.mean()) < 0.01 * factor
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.05  # one each


def test_a_step_is_clipped_as_a_whole_and_goes_from_the_model_received(tmp_path: Path) -> None:
    learner = tiny_learner("fedavg")
    cohort, request = tiny_cohort(learner), order(learner)
    models = {name: value + 1.0 for name, value in cohort.parameters.items()}
    guard = protection(tmp_path, 1e-9, learner, step_clip=0.3)
    leaving = guard.applied(Contribution(model=models), cohort, request)
    steps = [
        (leaving.model[n][0] - torch.from_numpy(request.guidance.arrays[n])).flatten()
        for n in models
    ]
    assert float(torch.cat(steps).norm()) == pytest.approx(0.3, rel=1e-4)
    assert float(next(iter(cohort.parameters.values())).max()) < 1.0  # the client's own stays


def test_sums_get_noise_for_a_client_or_for_a_sample(tmp_path: Path) -> None:
    """C = 2, H = 1: a sample moves 4. A client of n samples n times that."""
    learner = analytic_learner()
    cohort = tiny_cohort(learner)
    contribution = learner.contribution(cohort, learner.context(order(learner).guidance, cohort))
    only_first = replace(contribution, refused={1: "not in this test"})
    samples = cohort.samples.train_samples[0]

    def deviation(unit: str) -> float:
        guard = protection(tmp_path, 1.0, learner, clip=2.0, unit=unit, neighbours="replace")
        leaving = guard.applied(only_first, cohort, order(learner))
        noise = [leaving.arrays[n][0] - contribution.arrays[n][0] for n in contribution.arrays]
        return float(np.concatenate([part.ravel() for part in noise]).std())

    sample_deviation = deviation("sample")
    assert sample_deviation == pytest.approx(2 * 4, rel=0.5)
    assert deviation("client") / sample_deviation == pytest.approx(samples, rel=0.6)


def test_only_rows_of_classes_that_a_client_has_leave_noised(tmp_path: Path) -> None:
    learner = tiny_learner("fuels")
    cohort, _ = prototypes(learner)
    contribution = Contribution(
        {"prototypes": np.zeros((2, 3, 8), np.float32)},
        torch.tensor([[True, False, True], [False, True, False]]),
    )
    leaving = protection(tmp_path, 1.0, learner).applied(contribution, cohort, order(learner))
    moved = np.abs(leaving.arrays["prototypes"]).sum(axis=2) > 0
    assert moved.tolist() == [[True, False, True], [False, True, False]]


def test_who_knows_seed_client_and_round_cannot_take_the_noise_off(tmp_path: Path) -> None:
    """The server draws the noise of a simulation's node: the best guess that it can make."""
    learner = tiny_learner("fuels")
    request = order(learner)
    true = applied(protection(tmp_path, 1e-12, learner), learner, request).arrays["prototypes"]
    noised = applied(protection(tmp_path, 1.0, learner), learner, request).arrays["prototypes"]
    guessed = protection(None, 1.0, learner, secret_of_simulation(0))
    noise = applied(guessed, learner, request).arrays["prototypes"] - true
    remainder = noised - noise - true
    assert remainder.std() > (noised - true).std()  # worse than before
    assert np.abs(noised - true).min() > 0


def test_the_same_order_gets_the_same_answer_and_is_counted_once(tmp_path: Path) -> None:
    learner = tiny_learner("fuels")
    first, repeated = (
        applied(protection(tmp_path, 1.0, learner), learner, order(learner)).arrays["prototypes"]
        for _ in range(2)
    )
    assert np.array_equal(first, repeated)
    assert releases(tmp_path) == [1, 1]


@pytest.mark.parametrize(
    "changed",
    [
        {"guidance": Guidance(options={"a": 1.0})},
        {"server_round": 2},
        {"run": "other"},
        {"token": "other"},
        {"guidance": Guidance({"x": np.ones(2, np.float32)})},
    ],
)
def test_another_question_gets_other_noise_even_where_the_answer_is_the_same(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    learner = tiny_learner("fuels")
    request = order(learner)
    guard = protection(tmp_path, 1.0, learner)
    first = applied(guard, learner, request).arrays["prototypes"]
    second = applied(guard, learner, replace(request, **changed)).arrays["prototypes"]
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05
    assert releases(tmp_path) == [2, 2]


def test_the_same_question_with_another_answer_gets_other_noise(tmp_path: Path) -> None:
    """Otherwise the difference of two replies would reveal the difference of their values."""
    learner = tiny_learner("fuels")
    request, guard = order(learner), protection(tmp_path, 1.0, learner, clip=10.0)
    first = applied(guard, learner, request, 1.0).arrays["prototypes"] - 1.0
    second = applied(guard, learner, request, 1.001).arrays["prototypes"] - 1.001
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_whoever_has_spent_all_sends_nothing_and_the_others_do(tmp_path: Path) -> None:
    learner = tiny_learner("fuels")
    settings = plan(1.0).settings
    PrivacyLedger(tmp_path, SitePrivacy()).enter("a", settings, 1.0, ["earlier"])
    guard = Protection(
        plan(1.0), SECRET, PrivacyLedger(tmp_path, SitePrivacy(max_epsilon=5.0)), learner
    )
    leaving = applied(guard, learner, order(learner))
    assert list(leaving.refused) == [0]
    assert "'a' would have spent" in leaving.refused[0]


def test_for_a_masked_sum_values_are_clipped_and_the_noise_is_stated(tmp_path: Path) -> None:
    """B = 500 rows of length 0.5 each. The sum's noise has half of 0.5·√500 as its deviation."""
    learner = tiny_learner("fuels")
    leaving = applied(
        protection(tmp_path, 0.5, learner, session="sum", clip=0.5), learner, order(learner), 2.0
    )
    rows = leaving.arrays["prototypes"]
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows, 0.5 / math.sqrt(8))
    assert leaving.noise == {"prototypes": Noise(0.5, 0.5 * math.sqrt(500), 500 * 8)}


def test_a_masked_step_is_clipped_in_double_precision() -> None:
    learner = tiny_learner("fedavg")
    cohort, request = tiny_cohort(learner), order(learner)
    models = {name: value + 1.0 for name, value in cohort.parameters.items()}
    guard = protection(None, 0.5, learner, session="sum", step_clip=0.3, neighbours="replace")
    leaving = guard.applied(Contribution(model=models), cohort, request)
    steps = [leaving.model[n][0].numpy() - request.guidance.arrays[n] for n in models]
    values = np.concatenate([step.ravel() for step in steps])
    assert np.linalg.norm(values) == pytest.approx(0.3, rel=1e-12)
    assert set(leaving.noise.values()) == {Noise(1.0, 0.3, values.size)}


def test_each_sum_counts_once(tmp_path: Path) -> None:
    learner = tiny_learner("fuels")
    for session in ("first", "first", "second"):
        guard = protection(tmp_path, 0.5, learner, session=session)
        applied(guard, learner, order(learner))
    assert releases(tmp_path) == [2, 2]


def test_the_noise_of_masked_sums_hides_the_client_with_most_samples() -> None:
    """C = 2, H = 1, and nobody counts with more than 40 samples."""
    learner = analytic_learner()
    cohort = tiny_cohort(learner)
    request = replace(order(learner), most_samples=40)
    contribution = learner.contribution(cohort, learner.context(request.guidance, cohort))
    guard = protection(None, 0.5, learner, session="sum", clip=2.0)
    leaving = guard.applied(contribution, cohort, request)
    assert {noise.length for noise in leaving.noise.values() if noise} == {40 * 4.0}


def releases(folder: Path) -> list[int]:
    files = sorted((folder / "spent").glob("*.json"))
    return [json.loads(file.read_text())["releases"] for file in files]


class SaysNothing(FedAvgLearner):
    """A user's method that trains FedAvg's model and declares nothing."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> list[Sends]:
        return []


class Unbounded(FedAvgLearner):
    """Does not say how far one client can change its means."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> list[Sends]:
        return [model(), Sends("means", {"means": (3,)})]


@pytest.mark.parametrize(
    ("kind", "arrays", "message"),
    [
        (SaysNothing, {}, "SaysNothing sends its model, but does not declare how far"),
        (Unbounded, {"means": np.ones((2, 3), np.float32)}, "Unbounded sends means, but does not"),
        (FedAvgLearner, {"means": np.ones((2, 3), np.float32)}, "sends means, but does not"),
    ],
)
def test_what_a_learner_did_not_say_it_sends_does_not_leave(
    tmp_path: Path, kind: type[FedAvgLearner], arrays: dict[str, Any], message: str
) -> None:
    plain = tiny_learner("fedavg")
    learner = kind(plain.training, plain.section, plain.task)
    cohort = tiny_cohort(learner)
    with pytest.raises(SettingsError, match=message):
        protection(tmp_path, 1.0, learner).applied(
            Contribution(arrays, model=cohort.parameters), cohort, order(learner)
        )


# --- the secret ---------------------------------------------------------------------------------


def test_a_node_draws_its_secret_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: own_secret(tmp_path / "p"), range(16)))
    [secret] = secrets
    assert len(secret) == 32
    assert own_secret(tmp_path / "q") != secret
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["secret"]
    assert stat.S_IMODE((tmp_path / "p" / "secret").stat().st_mode) == 0o600


def test_a_secret_that_others_can_read_or_that_is_cut_is_none(tmp_path: Path) -> None:
    own_secret(tmp_path)
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(SettingsError, match="others may read"):
        own_secret(tmp_path)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(SettingsError, match="is incomplete"):
        own_secret(tmp_path)


def test_that_of_a_simulation_repeats() -> None:
    assert secret_of_simulation(3) == secret_of_simulation(3) != secret_of_simulation(4)
