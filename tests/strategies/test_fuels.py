"""FUELS: the losses, ablations and prototypes of a client, and who gets which PR and NR."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import Round
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.models.forecaster import PROJECTOR, project
from fedproto_app.strategies.common import findings
from fedproto_app.strategies.common.learner import Learner
from fedproto_app.strategies.fuels import strategy as jsd_prototype
from fedproto_app.strategies.fuels.learner import (
    FILTER,
    cosine_matrix,
    gradient_norms,
    inter_client_loss,
    intra_client_loss,
)
from tests.helpers.tiny_cohort import NAMES as TWO
from tests.helpers.tiny_cohort import PERIOD, WIDTH, tiny_batches, tiny_cohort, tiny_learner, train
from tests.strategies.server_half import NAMES, NODE, Rows, accept, guidance, replies, server_of

# --- the client's half ---------------------------------------------------------------------------


PROTOTYPE = 3  # d_p


def learner(**changes: Any) -> Learner[Any]:
    return tiny_learner("fuels", **{"fuels.prototype-dim": PROTOTYPE, **changes})


def guidance_for(guided: list[str], **options: float) -> Guidance:
    rng = np.random.default_rng(1)
    rows = int(options.get("prototype-batches", 1)) * PERIOD
    arrays: Arrays = {}
    if guided:
        shape = (len(guided), rows, PROTOTYPE)
        arrays = {k: rng.normal(size=shape).astype(np.float32) for k in ("positive", "negative")}
    return Guidance(arrays, guided, options=dict(options))


def test_rho_multiplies_the_inter_loss() -> None:
    fuels = learner(**{"fuels.inter-weight": 3.0})
    received = guidance_for(["b", "a"])  # its rows need not be in the cohort's order
    clients = tiny_cohort(fuels)
    context = fuels.context(received, clients)
    batch = tiny_batches(fuels, clients)[0]
    terms = fuels.loss(clients.parameters, batch, context)
    projected = context.own.value()  # one batch so far: its projected representations
    swapped = {name: torch.from_numpy(array[[1, 0]]) for name, array in received.arrays.items()}
    plain = inter_client_loss(
        projected, swapped["positive"], swapped["negative"], torch.tensor([True, True]), 0.02
    )
    torch.testing.assert_close(terms["inter"], 3 * plain)


def test_every_loss_has_its_weight() -> None:
    """As A, Algorithm 1 has them: ρ on the prediction, none on L_inter."""
    changes = {"fuels.prediction-weight": 5, "fuels.intra-weight": 3, "fuels.inter-weight": 1}
    plain, weighted = learner(**{"fuels.inter-weight": 1}), learner(**changes)
    clients, received = tiny_cohort(plain), guidance_for(TWO)
    batch = tiny_batches(plain, clients)[0]
    ours, expected = (
        fuels.loss(clients.parameters, batch, fuels.context(received, clients))
        for fuels in (weighted, plain)
    )
    torch.testing.assert_close(ours["prediction"], 5 * expected["prediction"])
    torch.testing.assert_close(ours["intra"], 3 * expected["intra"])
    assert torch.equal(ours["inter"], expected["inter"])


def test_the_filters_start_and_rate() -> None:
    """Adam's first step is the learning rate, whatever the gradient: 0.001, for W ten times."""
    fuels = learner(**{"fuels.filter-start": 0.25, "fuels.filter-rate": 10.0})
    clients = tiny_cohort(fuels)
    assert (clients.parameters[FILTER] == 0.25).all()
    before = {name: value.clone() for name, value in clients.parameters.items()}
    unit_gradients = {name: torch.ones_like(value) for name, value in before.items()}
    clients.optimizer.step(clients.parameters, unit_gradients)
    for name, old in before.items():
        step = 0.01 if name == FILTER else 0.001
        moved = old - clients.parameters[name]
        torch.testing.assert_close(moved, torch.full_like(moved, step), rtol=1e-3, atol=1e-7)


def test_the_optimiser_is_renewed_once_after_the_first_round_with_guidance() -> None:
    """b is guided from round 2 on, a never: b trains round 3 as with a fresh optimiser."""
    fuels = learner(**{"fuels.renew-optimizer": True})
    _, _, clients = train(fuels, guidance_for([]))
    assert clients.memory.guided.tolist() == [0, 0]
    steps = clients.optimizer.state["steps"][FILTER]
    steps_so_far = int(steps[0])
    assert steps.tolist() == [steps_so_far, steps_so_far] != [0, 0]
    train(fuels, guidance_for(["b"]), clients)
    assert clients.memory.guided.tolist() == [0, 1]
    for tensors in clients.optimizer.state.values():
        for value in tensors.values():
            assert not value[1].any()
            assert value[0].any()
    assert steps.tolist() == [2 * steps_so_far, 0]
    new_cohort = tiny_cohort(fuels)
    for name, value in clients.parameters.items():
        new_cohort.parameters[name].copy_(value)
    new_cohort.memory.guided.copy_(clients.memory.guided)
    expected, *_ = train(fuels, guidance_for(["b"]), new_cohort)
    renewed, *_ = train(fuels, guidance_for(["b"]), clients)
    torch.testing.assert_close(renewed["total"][1], expected["total"][1])
    assert (renewed["total"][0] - expected["total"][0]).abs() > 1e-5  # a went on
    for name, value in new_cohort.parameters.items():
        torch.testing.assert_close(clients.parameters[name][1], value[1])
    train(fuels, guidance_for(["b"]), clients)
    assert steps.tolist() == [4 * steps_so_far, 2 * steps_so_far]  # once and never again


def test_diagnostics_are_the_gradients_of_the_last_epochs_first_batch() -> None:
    fuels = learner(**{"fuels.diagnostics": True})
    clients, received = tiny_cohort(fuels), guidance_for(["b"])
    context = fuels.context(received, clients)
    context.start_epoch()
    first, second = tiny_batches(fuels, clients)[:2]
    leaves = {n: value.clone().requires_grad_() for n, value in clients.parameters.items()}
    terms = fuels.loss(leaves, first, context)
    encoder = [leaf for name, leaf in leaves.items() if name.startswith("encoder.")]
    expected = {}
    for name, term in terms.items():
        gradients = [torch.autograd.grad(term[k], encoder, retain_graph=True) for k in range(2)]
        norms = [sum(g[k].square().sum() for g in gradients[k]) ** 0.5 for k in range(2)]
        expected[f"gradient-{name}"] = torch.stack(norms)
    fuels.loss(leaves, second, context)  # is not measured
    with torch.no_grad():
        clients.parameters[FILTER][0] = -2.0
        clients.parameters[FILTER][1, 0] = -1.0  # a quarter of the second client's rows
    measured = fuels.conclude(clients, context)
    assert measured.keys() == {*expected, "filter-kept", "filter-size"}
    for name, norms in expected.items():
        torch.testing.assert_close(measured[name], norms)
    assert measured["gradient-inter"][0] == 0 < measured["gradient-inter"][1]
    assert measured["filter-kept"].tolist() == [0, 0.75]
    assert measured["filter-size"].tolist() == [2, 1]


def test_diagnostics_change_no_result() -> None:
    plain = train(learner(), guidance_for(TWO))
    measured = train(learner(**{"fuels.diagnostics": True}), guidance_for(TWO))
    for name, value in plain[2].parameters.items():
        assert torch.equal(value, measured[2].parameters[name])
    gradients = {f"gradient-{term}" for term in ("prediction", "intra", "inter")}
    assert measured[0].keys() - plain[0].keys() == {*gradients, "filter-kept", "filter-size"}
    assert torch.equal(plain[0]["total"], measured[0]["total"])


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        ({}, set()),
        ({"fuels.inter": False}, {"inter"}),
        ({"fuels.intra": False}, {"intra"}),
        ({"fuels.intra": False, "fuels.inter": False}, {"intra", "inter"}),
    ],
)
def test_ablations_drop_their_loss(change: dict[str, bool], dropped: set[str]) -> None:
    losses, sent_arrays, clients = train(learner(**change), guidance_for(TWO))
    assert set(losses) == {"prediction", "intra", "inter", "total"} - dropped
    terms = torch.stack([value for name, value in losses.items() if name != "total"])
    torch.testing.assert_close(losses["total"], terms.sum(dim=0))
    assert sent_arrays["prototypes"].shape == (2, PERIOD, PROTOTYPE)
    assert FILTER not in clients.parameters or (clients.parameters[FILTER] != 1).any()
    unguided, _, _ = train(learner(**change), guidance_for([]))  # as in the first round
    assert set(unguided) == {"prediction", "intra", "total"} - dropped


@pytest.mark.parametrize(
    ("changes", "negatives"),
    [
        ({"fuels.learn-filter": False}, 4),
        ({"fuels.negatives": "filtered"}, 4 * 3),
        ({"fuels.negatives": "similarity"}, 4),
    ],
)
def test_the_negatives_by_hand(changes: dict[str, Any], negatives: int) -> None:
    """A projector of weight 0 makes all rows alike, cos = 1: −log(SM / (SM + n·SM)) = log(1 + n).

    A filter of 3 everywhere keeps all four rows, and weighs them only where Z is summed.
    """
    fuels = learner(**changes)
    clients = tiny_cohort(fuels)
    clients.parameters[PROJECTOR + "weight"].zero_()
    clients.parameters[PROJECTOR + "bias"].fill_(1)
    if FILTER in clients.parameters:
        clients.parameters[FILTER].fill_(3)
    context = fuels.context(guidance_for([]), clients)
    for batch in tiny_batches(fuels, clients):
        intra = fuels.loss(clients.parameters, batch, context)["intra"]
        torch.testing.assert_close(intra, torch.full((2,), math.log(1 + negatives)))


def test_without_a_filter_all_rows_stay_negatives_while_the_client_trains() -> None:
    """−log( SM[b,b] / (SM[b,b] + Σ_i SM[b,i]) ) of a trained model's projections."""
    fuels = learner(**{"fuels.learn-filter": False, "fuels.temperature": 0.5})
    _, _, clients = train(fuels, guidance_for(TWO))
    assert FILTER not in clients.parameters
    batch = tiny_batches(fuels, clients)[0]
    intra = fuels.loss(clients.parameters, batch, fuels.context(guidance_for([]), clients))["intra"]
    first, second = (
        project(clients.parameters, fuels.task.encode(clients.parameters, view))
        for view in (batch.inputs, batch.augmented)
    )
    for k in range(2):
        similarity = np.exp(cosine_similarity(first[k].detach(), second[k].detach()) / 0.5)
        positive = similarity.diagonal()
        expected = -np.log(positive / (positive + similarity.sum(axis=1))).mean()
        assert intra[k].item() == pytest.approx(expected, rel=1e-5)


def test_without_a_projector_the_representation_is_sent() -> None:
    fuels = learner(**{"fuels.prototype-dim": 0, "fuels.inter": False})
    _, sent_arrays, _ = train(fuels, guidance_for([]))
    assert sent_arrays["prototypes"].shape == (2, PERIOD, WIDTH)


def test_concatenated_prototypes_guide_each_batch_with_its_own_rows() -> None:
    fuels = learner(**{"fuels.periodicity-aware": False})
    received = guidance_for(TWO, **{"prototype-batches": 3})
    losses, sent_arrays, clients = train(fuels, received)
    assert sent_arrays["prototypes"].shape == (2, 3 * PERIOD, PROTOTYPE)
    assert (losses["inter"] > 0).all()
    context = fuels.context(received, clients)
    for batch in tiny_batches(fuels, clients):
        inter = fuels.loss(clients.parameters, batch, context)["inter"]
        assert ((inter > 0) == (batch.age < 3)).all()  # batches older than 3 have no rows


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_noise_of_the_set_size_is_added_to_what_is_sent_and_only_there(kind: str) -> None:
    scales = (None, 1.0, 1.0, 2.0)
    changes = [
        {"fuels.noise": kind, "fuels.noise-scale": scale} if scale else {} for scale in scales
    ]
    rounds = [train(learner(**change), guidance_for(TWO)) for change in changes]
    for _, _, clients in rounds:
        torch.testing.assert_close(clients.parameters, rounds[0][2].parameters, rtol=0, atol=0)
    clean, single, repeated, two = (arrays["prototypes"] for _, arrays, _ in rounds)
    assert not np.allclose(clean, single)
    np.testing.assert_array_equal(single, repeated)
    np.testing.assert_allclose(two - clean, 2 * (single - clean), rtol=1e-4, atol=1e-6)


def test_the_shift_of_the_augmented_view_is_the_settings() -> None:
    """a ~ U(low, 1): with low = 1 nothing is shifted."""
    for low, unshifted in ((1.0, True), (0.5, False)):
        fuels = learner(**{"fuels.augmentation-low": low})
        for batch in tiny_batches(fuels, tiny_cohort(fuels)):
            assert torch.equal(batch.inputs, batch.augmented) == unshifted


# --- the server's half ---------------------------------------------------------------------------


def strategy(**changes: Any) -> Any:
    return server_of("fuels", **{"data.period": 2, "fuels.prototype-dim": 2, **changes})


def report(fuels: Any, prototypes: dict[str, Rows]) -> None:
    """These clients' prototypes arrive, in this order."""
    accept(fuels, replies(**{name: {"prototypes": rows} for name, rows in prototypes.items()}))


ALIKE_A, ALIKE_B = [[3.0, 0.0], [0.0, 3.0]], [[3.0, 0.2], [0.0, 3.0]]
UNLIKE = [[0.0, 3.0], [3.0, 0.0]]
SHARE = {"aggregation.hostile-share": 0.4}


def test_guidance_by_hand() -> None:
    """a and b are alike, c differs from both. Rows are in the order of the clients asked for."""
    fuels = strategy(**{"fuels.beta": 40})
    report(fuels, {"a": ALIKE_A, "b": ALIKE_B, "c": UNLIKE})
    advice, mean = guidance(fuels, "c", "a"), np.mean([ALIKE_A, ALIKE_B], axis=0)
    assert advice.clients == ["c", "a"]
    np.testing.assert_allclose(advice.arrays["positive"], [UNLIKE, mean], rtol=1e-6)
    np.testing.assert_allclose(advice.arrays["negative"], [mean, UNLIKE], rtol=1e-6)


def test_without_negatives_there_is_no_guidance() -> None:
    """β is above ln 2. As a percentile it would separate c from a and b."""
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
    assert fuels.expected(Round(1)).per_client["prototypes"] == (4, 2)


def test_the_artefact_has_the_whole_matrix_of_few_clients_and_of_many_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fuels = strategy()
    report(fuels, {name: [[float(n), 0.0], [0.0, 1.0]] for n, name in enumerate(NAMES)})
    artefact = fuels.findings()["divergence"]
    assert set(artefact) == {"names", "nodes", "prototypes", "groups", "divergence"}
    assert artefact["names"].tolist() == NAMES
    full_matrix = artefact["divergence"]
    assert full_matrix.shape == (3, 3)
    assert np.array_equal(full_matrix, full_matrix.T)
    monkeypatch.setattr(findings, "MOST_COMPARED", 2)
    artefact = fuels.findings()["divergence"]
    places = artefact["divergence_of"]
    assert len(places) == 2
    assert np.array_equal(artefact["divergence"], full_matrix[np.ix_(places, places)])
    assert len(artefact["names"]) == len(artefact["groups"]) == len(artefact["prototypes"]) == 3
    recomputed = pairwise_divergence(torch.from_numpy(artefact["prototypes"]))
    assert np.array_equal(recomputed.numpy(), full_matrix)


# --- the losses -----------------------------------------------------------------------------------


# Two rows at right angles: cos is the identity matrix.
EYE = torch.eye(2).unsqueeze(0)


def test_cosine_ignores_length() -> None:
    rows = torch.tensor([[[3.0, 0.0], [1.0, 1.0]]])
    expected = torch.tensor([[[1.0, 2**-0.5], [2**-0.5, 1.0]]])
    torch.testing.assert_close(cosine_matrix(rows, 7 * rows), expected)


@pytest.mark.parametrize(
    ("weight", "negatives", "expected"),
    [
        # SM = Z = [[e, 1], [1, e]] at τ = 1, loss = −log(e / (e + e + 1)).
        ([[1.0, 1.0], [1.0, 1.0]], "filtered", -math.log(math.e / (2 * math.e + 1))),
        # Row 0: its diagonal is filtered out (W < 0), the other weighs 0.5: −log(e / (e + 0.5·1)).
        # Row 1: everything is filtered out: −log(e / e) = 0.
        ([[-1.0, 0.5], [0.0, -2.0]], "filtered", -math.log(math.e / (math.e + 0.5)) / 2),
        # A true negative counts with SM itself: −log(e / (e + 1)).
        ([[-1.0, 0.5], [0.0, -2.0]], "similarity", -math.log(math.e / (math.e + 1)) / 2),
    ],
)
def test_intra_loss_by_hand(weight: list[list[float]], negatives: str, expected: float) -> None:
    loss = intra_client_loss(EYE, EYE, torch.tensor([weight]), 1.0, negatives)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def naive_intra(projected: Tensor, augmented: Tensor, weight: Tensor, tau: float) -> Tensor:
    """P, eq. 6, word by word, in float64."""
    similarity = torch.exp(cosine_matrix(projected, augmented) / tau)
    z = torch.relu(similarity * weight)
    positive = similarity.diagonal(dim1=1, dim2=2)
    return -(positive / (positive + z.sum(dim=2))).log().mean(dim=1)


def test_intra_loss_and_its_gradients_equal_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 6, 4)
    projected, augmented = (
        torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(2)
    )
    weight = torch.randn(3, 6, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    ours = intra_client_loss(projected, augmented, weight, 0.5, "filtered")
    naive = naive_intra(projected, augmented, weight, 0.5)
    torch.testing.assert_close(ours, naive)
    inputs = (projected, augmented, weight)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), inputs),
        torch.autograd.grad(naive.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_similarity_negatives_still_teach_the_filter() -> None:
    # ∂L/∂W[b,i] = SM[b,i] / (SM[b,b] + Σ SM) / B, however small W is: the slope of Z = SM·W.
    weight = torch.full((1, 2, 2), 1e-6, requires_grad=True)
    loss = intra_client_loss(EYE, EYE, weight, 1.0, "similarity")
    (gradient,) = torch.autograd.grad(loss.sum(), weight)
    total = 2 * (2 * math.e + 1)
    expected = torch.tensor([[[math.e, 1.0], [1.0, math.e]]]) / total
    torch.testing.assert_close(gradient, expected)


def test_inter_loss_by_hand() -> None:
    positive = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    negative = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    # Row 0 is the positive: −log(e / (e + 1)), row 1 is the negative: −log(1 / (1 + e)).
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.e)) / 2
    loss = inter_client_loss(EYE, positive, negative, torch.tensor([True]), 1.0)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert inter_client_loss(EYE, positive, negative, torch.tensor([False]), 1.0).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_overflows_at_a_temperature_of_002(dtype: torch.dtype) -> None:
    rows = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=dtype, requires_grad=True)
    weight = torch.ones(1, 2, 2, dtype=dtype, requires_grad=True)
    # Row b's own view is its exact opposite: the worst case, loss ≈ 2/τ = 100.
    opposite = -rows.detach()
    intra = intra_client_loss(rows, opposite, weight, 0.02, "filtered")
    inter = inter_client_loss(rows, opposite, rows.detach(), torch.tensor([True]), 0.02)
    assert intra.item() == pytest.approx(100, rel=0.01)
    assert inter.item() == pytest.approx(100, rel=0.01)
    for gradient in torch.autograd.grad((intra + inter).sum(), (rows, weight)):
        assert gradient.isfinite().all()
    agreeing = intra_client_loss(rows, rows.detach(), weight, 0.02, "filtered")
    assert agreeing.item() == pytest.approx(math.log(2), rel=0.1)  # bfloat16 rounds at 50


def test_norms_of_two_clients_by_hand() -> None:
    """∂(3·Σw + v) is (3, 3, 1), and ∂(Σw²/2) is w itself, for client 1 (3, 4)."""
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    v = torch.tensor([5.0, 6.0], requires_grad=True)
    unused = torch.ones(2, requires_grad=True)
    terms = {
        "linear": 3 * w.sum(dim=1) + v,
        "square": w.square().sum(dim=1) / 2,
        "elsewhere": unused * 7,
    }
    norms = gradient_norms(terms, [w, v])
    torch.testing.assert_close(norms["linear"], torch.full((2,), 19.0).sqrt())
    assert norms["square"].tolist() == [0.0, 5.0]
    assert norms["elsewhere"].tolist() == [0.0, 0.0]
    torch.stack(list(terms.values())).sum().backward()  # the graph is still there
    assert w.grad is not None
