"""FUELS's server: who gets which PR and NR, what is recomputed, what it costs to send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance, Reply
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.fuels import strategy as jsd_prototype
from fedproto_app.strategies.fuels.strategy import JSDPrototypeStrategy
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.strategies.one_node import NAMES, NODE, guidance, one_node, report


def strategy(**changes: Any) -> JSDPrototypeStrategy:
    settings = settings_from({"data.period": 2, "fuels.prototype-dim": 2, **changes})
    return JSDPrototypeStrategy(settings, settings.method_settings, one_node(settings))


ALIKE_A, ALIKE_B = [[3.0, 0.0], [0.0, 3.0]], [[3.0, 0.2], [0.0, 3.0]]
UNLIKE = [[0.0, 3.0], [3.0, 0.0]]
SHARE = {"aggregation.hostile-share": 0.4}


def test_positive_and_negative_prototypes_by_hand() -> None:
    # The three divergences are small (a, b) and twice large: the median is large, so β = 40.
    fuels = strategy(**{"fuels.beta": 40})
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE})
    guidance_sent = guidance(fuels, "c", "a")
    assert guidance_sent.clients == ["c", "a"]
    mean = np.mean([ALIKE_A, ALIKE_B], axis=0)
    np.testing.assert_allclose(guidance_sent.arrays["positive"], [UNLIKE, mean], rtol=1e-6)
    np.testing.assert_allclose(guidance_sent.arrays["negative"], [mean, UNLIKE], rtol=1e-6)


def test_without_negatives_there_is_no_guidance() -> None:
    """β is above ln 2; as a percentile it would tell c from a and b."""
    fuels = strategy(**{"fuels.threshold": "absolute", "fuels.beta": 0.7})
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE})
    guidance_sent = guidance(fuels, "a", "b", "c")
    assert guidance_sent == Guidance()


def test_random_partners_are_as_many_fixed_over_the_rounds_and_drawn_from_the_seed() -> None:
    """By divergence a and b are alike: JSD's sets have 2, 2 and 1 members."""

    def positives(seed: int, *rounds: dict[str, Any]) -> list[Any]:
        fuels = strategy(**{"fuels.beta": 40, "fuels.comparison": "random", "seed": seed})
        positive_prototypes = []
        for arrived in rounds:
            report(fuels, arrived)
            positive_prototypes.append(guidance(fuels, "a", "b", "c").arrays["positive"].tolist())
        return positive_prototypes

    prototypes = {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE}
    first, second = positives(0, prototypes, prototypes)
    assert first == second == positives(0, dict(reversed(prototypes.items())))[0]
    means = {
        pair: np.mean([prototypes[name] for name in pair], axis=0, dtype=np.float32).tolist()
        for pair in ("ab", "ac", "bc")
    }
    drawn = set()
    for seed in range(6):
        [(of_a, of_b, of_c)] = positives(seed, prototypes)
        assert of_c == UNLIKE
        assert of_a in (means["ab"], means["ac"])
        assert of_b in (means["ab"], means["bc"])
        drawn.add(str(of_a))
    assert len(drawn) == 2


def test_only_those_who_reported_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    fuels = strategy()
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE})
    before = fuels.findings()["divergence"]["divergence"]
    recomputed: list[list[int]] = []
    update = jsd_prototype.update_divergence

    def spy(divergence: Any, prototypes: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        recomputed.append(changed.tolist())
        return update(divergence, prototypes, changed)

    monkeypatch.setattr(jsd_prototype, "update_divergence", spy)
    report(fuels, {"b": UNLIKE})
    assert recomputed == [[1]]
    after = fuels.findings()["divergence"]
    assert after["divergence"][0, 2] == before[0, 2]
    expected = pairwise_divergence(torch.from_numpy(after["prototypes"])).numpy()
    np.testing.assert_array_equal(after["divergence"], expected)


@pytest.mark.parametrize("rule", ["mean", "clipped-mean", "median", "trimmed-mean"])
def test_who_copies_a_client_is_its_partner_and_no_rule_but_the_mean_obeys_it(rule: str) -> None:
    """late sends a's prototype with 300 added to every value, which the divergence does not see.
    From a the others are 0.2 (b), 6 (c) and 600 away: clipping leaves 3 of the 300."""
    fuels = strategy(**{"fuels.beta": 50, "aggregation.rule": rule, **SHARE})
    shifted = (np.array(ALIKE_A) + 300).tolist()
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE, "late": shifted})
    guidance_sent = guidance(fuels, "a")
    positive = guidance_sent.arrays["positive"][0]
    partners = np.array([ALIKE_A, ALIKE_B, shifted])
    if rule == "clipped-mean":
        moved = np.array([np.zeros((2, 2)), np.array(ALIKE_B) - ALIKE_A, np.full((2, 2), 3.0)])
        np.testing.assert_allclose(positive, np.array(ALIKE_A) + moved.mean(axis=0), rtol=1e-5)
    elif rule == "mean":
        np.testing.assert_allclose(positive, partners.mean(axis=0), rtol=1e-5)
    else:
        np.testing.assert_allclose(positive, np.median(partners, axis=0), rtol=1e-5)


def test_a_late_joiner_is_not_guided_before_it_reports() -> None:
    fuels = strategy(**{"fuels.beta": 40})
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE})
    assert guidance(fuels, "late", "a").clients == ["a"]
    report(fuels, {"late": UNLIKE})
    assert guidance(fuels, "late", "a").clients == ["late", "a"]
    assert len(fuels.state()["names"]) == 4


def test_concatenated_prototypes_take_the_shortest_clients_length() -> None:
    fuels = strategy(**{"fuels.periodicity-aware": False})
    keys = [ClientKey(name, NODE) for name in NAMES]
    assert fuels.eligible(keys) == keys
    assert guidance(fuels, *NAMES).options == {"prototype-batches": 2.0}
    assert fuels.expected(1).per_client["prototypes"] == (4, 2)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({}, 768),
        ({"fuels.prototype-dim": 0}, 6_144),
        ({"data.period": 288, "fuels.prototype-dim": 16}, 4_608),
        ({"data.period": 288, "fuels.prototype-dim": 128}, 36_864),
    ],
)
def test_the_uplink_is_the_papers(changes: dict[str, Any], values: int) -> None:
    settings: Settings = settings_from(changes)
    fuels = JSDPrototypeStrategy(
        settings, settings.method_settings, Federation(settings, "run", "token")
    )
    assert fuels.expected(1).values(Reply(["a"], [1])) == values


def test_what_is_counted_is_what_crosses_the_wire(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, rounds=2)
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    import json

    lines = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    per_client = 24 * 4
    assert [line["parameters_up"] for line in lines] == [8 * per_client] * 2
    assert [line["parameters_down"] for line in lines] == [0, 8 * 2 * per_client]
    assert all(line["bytes_up"] > 4 * line["parameters_up"] for line in lines)
