"""FedGRU's client half alone: it trains its own cluster's model and chooses among all."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.compared.fedgru import CHOICE, member, subsets
from tests.learners.tiny_cohort import tiny_cohort, tiny_learner, train

SMALL = {"fedgru.hidden": 3, "graph.noise": 0.0}
GUIDANCE = Guidance(options={"a": 1.0, "b": 0.0})


def test_every_mean_of_some_models_is_a_candidate() -> None:
    assert [weights.tolist() for weights in subsets(2)] == [[1, 0], [0, 1], [0.5, 0.5]]
    assert len(subsets(4)) == 15
    assert all(weights.sum() == 1 for weights in subsets(4))


def test_a_client_trains_its_own_clusters_model_and_sends_that() -> None:
    """As it would with that model alone; the other cluster's stays, bit for bit."""
    learner = tiny_learner("fedgru", **SMALL)
    before = tiny_cohort(learner).parameters
    losses, _, after = train(learner, GUIDANCE)
    sent_model = learner.model_to_send(after)
    alone = tiny_learner("fedgru", **SMALL, **{"fedgru.clusters": 1})
    plain_losses, _, plain = train(alone, replace(GUIDANCE, options={}))
    assert set(sent_model) == set(plain.parameters)
    torch.testing.assert_close(losses["total"], plain_losses["total"])
    for name, values in plain.parameters.items():
        torch.testing.assert_close(sent_model[name], values, atol=1e-6, rtol=1e-4)
    for row, cluster in enumerate((0, 1)):
        was, trained_member = member(before, cluster), member(after.parameters, cluster)
        assert all(torch.equal(trained_member[name][row], was[name][row]) for name in was)


def test_it_forecasts_with_the_models_that_err_least_on_validation_samples() -> None:
    learner = tiny_learner("fedgru", **SMALL)
    _, _, cohort = train(learner, GUIDANCE)
    errors = []
    for choice in subsets(2):
        tried = {**cohort.parameters, CHOICE: choice.expand(2, -1)}
        errors.append(learner.task.validation_error(tried, cohort.samples))
    assert learner.receive(cohort, GUIDANCE) == [0, 1]
    best = torch.stack(errors).argmin(dim=0)
    chosen = [subsets(2)[index].tolist() for index in best.tolist()]
    assert cohort.parameters[CHOICE].tolist() == chosen
    cohort.parameters["decoder.0.bias"].fill_(torch.nan)
    learner.receive(cohort, GUIDANCE)
    assert cohort.parameters[CHOICE].tolist() == [[0, 1], [0, 1]]
