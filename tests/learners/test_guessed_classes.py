"""The closed form's client with sequences whose class nobody has told: it guesses and adds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.data.sequences.clients import ClientSequences
from fedproto_app.maths.class_gaussian import class_sums
from fedproto_app.strategies.analytic.classes_learner import AnalyticClassesLearner
from fedproto_app.strategies.common.class_fit import COUNTS, GRAM, MOMENT, arrived
from fedproto_app.strategies.common.learner import Cohort, make_learner, train_cohort
from tests.learners.tiny_sequences import (
    sequence_client,
    sequence_cohort,
    sequence_settings,
    task_of,
)

LABELLED = 6  # of a client's train sequences have a label


def plain(client: ClientSequences) -> ClientSequences:
    """With classes so far apart that few labels say what the other sequences are."""
    apart = [
        values + np.float32(4 * target)
        for values, target in zip(client.train.values, client.train.targets, strict=True)
    ]
    return replace(client, train=replace(client.train, values=apart))


COMPLETE = [
    plain(sequence_client("a", [0, 1, 2] * 8, (6, 9))),
    plain(sequence_client("b", [0, 2, 1] * 7, (6, 9))),
    plain(sequence_client("c", [0, 1, 2] * 2, (6, 9))),  # all of it has labels
]
CLIENTS = [
    replace(
        client,
        train=replace(
            client.train,
            values=client.train.values[:LABELLED],
            targets=client.train.targets[:LABELLED],
        ),
        unlabelled=client.train.values[LABELLED:],
    )
    for client in COMPLETE
]
SHARES = {"analytic.sharing": "shrunk"}


def learner_of(**changes: Any) -> AnalyticClassesLearner:
    settings = sequence_settings(
        method="analytic",
        keep="last",
        **{"analytic.features": 20, "analytic.guess-rounds": 2, **SHARES, **changes},
    )
    learner = make_learner(settings, task_of(settings))
    assert isinstance(learner, AnalyticClassesLearner)
    return learner


def a_round(
    learner: AnalyticClassesLearner,
    cohort: Cohort,
    server_round: int,
    clients: Sequence[ClientSequences] = CLIENTS,
) -> Arrays:
    """Train, add up and receive; returns what the clients sent."""
    cohort.server_round = server_round
    cohort.samples = learner.task.gather(clients, server_round)
    context = learner.context(Guidance(), cohort)
    train_cohort(learner, cohort, context)
    sent_arrays = learner.contribution(cohort, context, server_round).arrays
    total = {name: array.sum(axis=0) for name, array in sent_arrays.items()}
    assert learner.receive(cohort, Guidance(total)) == [0, 1, 2]
    return sent_arrays


def test_the_first_round_counts_labels_and_the_next_ones_guesses_too() -> None:
    learner = learner_of()
    cohort = sequence_cohort(learner, CLIENTS, 1)
    first = a_round(learner, cohort, 1)
    assert first[COUNTS].sum(axis=1).tolist() == [LABELLED, LABELLED, LABELLED]
    # By hand: what the model of the first round says of the unlabelled ones.
    all_samples = learner.task.gather(CLIENTS, 2)
    vectors = learner.task.train_vectors(cohort.parameters, all_samples)
    predictions = learner.task.predict(cohort.parameters, vectors.features).argmax(dim=2)
    labels, present = vectors.labels.clone(), torch.zeros_like(vectors.present)
    for row, client in enumerate(CLIENTS):
        labels[row, LABELLED : client.train_samples] = predictions[
            row, LABELLED : client.train_samples
        ]
        present[row, : client.train_samples] = 1
    second = a_round(learner, cohort, 2)
    assert second[COUNTS].sum(axis=1).tolist() == [24, 21, 6]
    expected = class_sums(vectors._replace(labels=labels, present=present), 3)
    actual = arrived(second, torch.device("cpu"))
    for ours, expected_part in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, expected_part, rtol=1e-5, atol=1e-4)


def test_guesses_that_are_right_are_as_good_as_labels() -> None:
    learner = learner_of()
    cohort = sequence_cohort(learner, CLIENTS, 1)
    for server_round in (1, 2, 3):
        sent_arrays = a_round(learner, cohort, server_round)
    complete_learner = learner_of()
    complete_cohort = sequence_cohort(complete_learner, COMPLETE, 1)
    complete_arrays = a_round(complete_learner, complete_cohort, 1, COMPLETE)
    right = [(client.train.targets == label).sum() for client in COMPLETE for label in range(3)]
    assert sent_arrays[COUNTS].flatten().tolist() == right
    for name in (GRAM, MOMENT):
        torch.testing.assert_close(
            torch.from_numpy(sent_arrays[name]), torch.from_numpy(complete_arrays[name])
        )


def test_who_has_no_model_yet_guesses_nothing() -> None:
    learner = learner_of()
    sent_arrays = a_round(learner, sequence_cohort(learner, CLIENTS, 2), 2)
    assert sent_arrays[COUNTS].sum(axis=1).tolist() == [LABELLED, LABELLED, LABELLED]


def test_without_guesses_such_sequences_are_left_out() -> None:
    learner = learner_of(**{"analytic.guess-rounds": 0})
    cohort = sequence_cohort(learner, CLIENTS, 1)
    a_round(learner, cohort, 1)
    assert a_round(learner, cohort, 2)[COUNTS].sum(axis=1).tolist() == [
        LABELLED,
        LABELLED,
        LABELLED,
    ]


def test_alone_a_client_guesses_by_its_own_model() -> None:
    learner = learner_of(**{"analytic.sharing": "none"})
    cohort = sequence_cohort(learner, CLIENTS, 1)
    for server_round, count in ((1, [LABELLED, LABELLED, LABELLED]), (2, [24, 21, 6])):
        cohort.server_round = server_round
        cohort.samples = learner.task.gather(CLIENTS, server_round)
        train_cohort(learner, cohort, learner.context(Guidance(), cohort))
        assert cohort.memory.sums["counts"].sum(dim=1).tolist() == count
