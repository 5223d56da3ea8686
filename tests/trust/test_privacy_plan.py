"""Which methods can be protected, by how much noise, and what is refused before training starts."""

from __future__ import annotations

from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import METHODS
from fedproto_app.core.tasks import TASKS
from fedproto_app.settings import settings_from
from fedproto_app.tasks.table import small_run
from fedproto_app.trust.privacy_loss import epsilon_of, privacy_plan

NOT_EVEN_NOISE = {"privacy.metrics": "none", "privacy.mechanism": "none"}
GAUSSIAN: dict[str, Any] = {"privacy.mechanism": "gaussian"}
KNOWN = {"data.source": "long-csv", "data.path": "wind.csv", "data.known": "wind"}
ABLE = {
    "forecasting": "fuels solo analytic fedavg fedavg-ft fedprox fedrep per-fedavg pfedme fedproto "
    "fedpcl apfl ditto fedala naive seasonal-naive mean knn-per",
    "classification": "gldp solo analytic fedavg fedavg-ft fedprox fedrep per-fedavg pfedme apfl "
    "ditto fedala naive knn-per fedproto fedpcl",
    "sequence-classification": "fed-react solo analytic fedavg fedavg-ft fedprox fedrep per-fedavg "
    "pfedme apfl ditto fedala naive knn-per fedproto fedpcl",
    "sequence-regression": "fed-react solo fedavg fedavg-ft fedprox fedrep per-fedavg pfedme apfl "
    "ditto fedala naive knn-per",
}


def plan(task: str = "forecasting", **changes: Any) -> Any:
    table = {"method": "fuels", **GAUSSIAN, "privacy.noise-multiplier": 5.0, **changes}
    return privacy_plan(settings_from({**small_run(task), **table}))


@pytest.mark.parametrize("task", TASKS)
def test_every_method_is_protected_or_refused_with_the_reason(task: str) -> None:
    for name, method in METHODS.items():
        if not method.works_with(task):
            continue
        if name in ABLE[task].split():
            assert plan(task, method=name, **method.small).noise_multiplier == 5.0
            continue
        why = f"method = '{name}': .*these methods can be protected: "
        if name == "kindred":
            why = "set kindred.sharing = 'none', and share the response"
        with pytest.raises(SettingsError, match=why):
            plan(task, method=name, **method.small)


@pytest.mark.parametrize(
    ("task", "method", "releases"),
    [
        ("forecasting", "solo", (0, 0)),
        ("forecasting", "fuels", (1, 1)),
        ("forecasting", "fedavg", (1, 1)),
        ("forecasting", "fedpcl", (2, 2)),
        ("classification", "gldp", (2, 2)),
        ("sequence-classification", "fed-react", (1, 1)),
    ],
)
def test_releases_of_a_round(task: str, method: str, releases: tuple[int, int]) -> None:
    """In the first round, which is of fed-react's first phase, and much later."""
    planned = plan(task, method=method)
    assert (planned.releases_in(1), planned.releases_in(1000)) == releases


def test_noise_is_made_for_the_planned_rounds_of_both_phases() -> None:
    changes = {"method": "fed-react", "encoder.rounds": 3, "rounds": 4}
    epsilon = {"privacy.noise-multiplier": 0.0, "privacy.epsilon": 6.0}
    privacy_plan = plan("sequence-classification", **changes, **epsilon)
    assert epsilon_of(7 * privacy_plan.loss, 1e-5) == pytest.approx(6.0, rel=1e-6)
    assert [privacy_plan.releases_in(number) for number in (1, 3, 4)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("response", "releases"),
    [
        ({"response.scales": "wind 5 3"}, [1, 0]),
        ({"response.columns": "public"}, [0, 1, 0]),
        ({"response.sharing": "none"}, [0]),
    ],
)
def test_a_response_is_one_release(response: dict[str, str], releases: list[int]) -> None:
    for masks in (False, True):
        changes = {**KNOWN, **response, "method": "naive"}
        if masks and releases != [0]:
            changes["aggregation.secure"] = True
        planned = plan(**changes)
        assert [planned.releases_in(number + 1) for number in range(len(releases))] == releases


def test_noise_is_made_for_evaluations_too_if_errors_get_some() -> None:
    """Four rounds, and evaluations of the third and the last: six releases."""
    epsilon = {"privacy.noise-multiplier": 0.0, "privacy.epsilon": 6.0, "evaluate-every": 3}
    noised = plan(rounds=4, **epsilon, **{"privacy.metrics": "noised"})
    assert epsilon_of(6 * noised.loss, 1e-5) == pytest.approx(6.0, rel=1e-6)
    for metrics in ("none", "exact", "auto"):
        unnoised = plan(rounds=4, **epsilon, **{"privacy.metrics": metrics})
        assert epsilon_of(4 * unnoised.loss, 1e-5) == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"privacy.metrics": "noised", "privacy.max-epsilon": 0.8},
            "max-epsilon = 0.8: the first round alone spends 1",
        ),
        ({"patience": 2}, "patience = 2: watches .* privacy.metrics = 'auto' withholds"),
        ({"patience": 2, **NOT_EVEN_NOISE}, "patience = 2: .*privacy.metrics = 'none' withholds"),
        (
            {"privacy.metrics": "noised", "privacy.mechanism": "none"},
            "privacy.metrics = 'noised': needs the noise of privacy.mechanism",
        ),
        ({"privacy.error-clip": 0.0}, "privacy.error-clip = 0.0"),
        ({"privacy.noise-multiplier": 0.0}, "needs privacy.noise-multiplier or privacy.epsilon"),
        ({"privacy.epsilon": 1.0}, "and not both"),
        ({"privacy.unit": "sample"}, "it must be 'replace'"),
        (
            {"privacy.unit": "sample", "privacy.neighbours": "replace"},
            "privacy.unit = 'sample': method = 'fuels' trains on all samples",
        ),
        ({"fuels.noise": "laplace"}, "fuels.noise = 'laplace': is no protection"),
        ({"privacy.max-epsilon": 0.5}, "max-epsilon = 0.5: the first round alone spends 0.7"),
        ({"method": "fcgcn"}, "method = 'fcgcn': its clients see each other's values"),
        ({"privacy.clip": float("inf")}, "privacy.clip = inf"),
        ({"privacy.delta": 0.0}, "privacy.delta = 0.0"),
        ({**KNOWN}, "usual size is; state it in response.scales"),
        (
            {"method": "analytic", "aggregation.secure": True, "aggregation.weight-limit": 0.0},
            "aggregation.weight-limit = 0: in a masked sum the noise must hide",
        ),
    ],
)
def test_impossible_protection_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan(**changes)


def test_nothing_is_planned_without_a_mechanism() -> None:
    assert privacy_plan(settings_from({})) is None


def test_noised_sums_are_not_judged() -> None:
    with pytest.raises(SettingsError, match=r"'median': this rule judges a client's"):
        plan(method="analytic", **{"aggregation.rule": "median"})
