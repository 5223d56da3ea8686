"""A client's mean day, and one window, from what the client sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.leakage.attackers import (
    Estimate,
    Vectors,
    bootstrapped,
    correlation,
    decoded,
    explained,
    inverted,
    mean_of_others,
)
from benchmarks.leakage.victims import Victims
from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.noise import noisy
from fedproto_app.maths.ridge import triangle
from fedproto_app.tasks.forecasting.task import mean_day

NOISE = 1.0  # the paper's standard deviation
TRIES = 12  # windows whose gradient is inverted


@dataclass(frozen=True)
class Reconstruction:
    """An attack's guesses and their quality.

    says: what the attacker sees. guesses: [N, p], of the secrets. drawn: the name in the
    picture, "" without a curve. share: of the error that the guesses save. matched: their mean
    correlation.
    """

    says: str
    guesses: Vectors
    share: Estimate
    matched: float
    drawn: str = ""


def profiles(victims: Victims) -> tuple[Vectors, list[Reconstruction]]:
    """Return the clients' true mean days, [N, p], and the guesses, from nothing to all."""
    samples = victims.samples()
    days = mean_day(samples).double().numpy()
    prototypes = victims.prototypes()
    _, first, last = victims.fedavg(range(len(victims.names)), victims.rounds)

    def reconstructed(says: str, guesses: Vectors, drawn: str = "") -> Reconstruction:
        share = explained(guesses, days)
        return Reconstruction(says, guesses, share, correlation(guesses, days), drawn)

    size = np.sqrt(np.square(prototypes).mean())
    spoilt = decoded(_noisy(prototypes, victims.names), days)
    return days, [
        reconstructed("nothing (mean of the other clients)", mean_of_others(days), "nothing"),
        reconstructed(
            f"FUELS's prototype (root mean square {size:.2f})",
            decoded(prototypes, days),
            "FUELS's prototype",
        ),
        reconstructed(f"FUELS's prototype, noise of {NOISE:g}", spoilt, f"with noise of {NOISE:g}"),
        reconstructed("FedAvg's model, the first round's step", decoded(first, days)),
        reconstructed(
            "FedAvg's model, the last round's step", decoded(last, days), "FedAvg's step"
        ),
        reconstructed("`analytic`'s sums without a calendar", decoded(_sums(victims), days)),
        reconstructed('`analytic`\'s sums with `data.calendar = "phase"`', _divided(victims)),
        reconstructed("Kindred's prototype, which is the mean day", days.astype(np.float32)),
    ]


def _noisy(prototypes: Vectors, names: list[str]) -> Vectors:
    rows = zip(torch.from_numpy(prototypes), names, strict=True)
    spoilt = [noisy(row, "gaussian", NOISE, torch_stream(0, name, "noise")) for row, name in rows]
    return torch.stack(spoilt).numpy()


def _sums(victims: Victims) -> Vectors:
    """Return each client's sums per sample, [N, d]."""
    samples = victims.samples()
    gram, moment = victims.learner("fedavg").task.regression_sums(samples)
    counts = torch.tensor(samples.train_samples)[:, None]
    flat = torch.cat([triangle(gram).flatten(1), moment.flatten(1)], dim=1) / counts
    return flat.numpy()


def _divided(victims: Victims) -> Vectors:
    """Return Σ y·1[phase] / Σ 1[phase], [N, p]. The sums that are sent have both terms."""
    samples = victims.samples(**{"data.calendar": "phase"})
    task = victims.learner("fedavg", **{"data.calendar": "phase"}).task
    gram, moment = (sums.float().double() for sums in task.regression_sums(samples))
    width = task.layout.beside_width
    counts = gram[:, 0].diagonal(dim1=-2, dim2=-1)[:, -width:]
    return np.asarray(moment[:, 0, -width:, 0] / counts.clamp(min=1))


def window_from_gradient(victims: Victims) -> Reconstruction:
    """Guess one window of some clients from the gradient of that window at the first model.

    The guess without the gradient is the mean of the others' windows of the same phase.
    """
    learner, samples = victims.learner("fedavg"), victims.samples()
    task = learner.task
    model = {n: v[None].double() for n, v in learner.initial_parameters().items()}

    def gradient_of(inputs: Tensor, target: Tensor) -> list[Tensor]:
        weights = {n: v.clone().requires_grad_() for n, v in model.items()}
        # Not `task.forecast`, which rounds the representation to float32.
        forecast = task.model.predict(weights, task.model.encode(weights, inputs))
        loss = (forecast - target).square().mean()
        return list(torch.autograd.grad(loss, list(weights.values()), create_graph=True))

    rows = np.linspace(0, len(victims.names) - 1, TRIES).astype(int)
    windows = samples.batches[:, 0, 12]  # the first day's noon, where a day has 24 steps
    first_windows = samples.inputs[torch.arange(len(windows)), windows].double()
    truth, guess, blind = [], [], []
    for row in rows.tolist():
        inputs = first_windows[row][None, None]
        target = samples.targets[row, windows[row]].double()[None, None]
        mean_window = torch.cat([first_windows[:row], first_windows[row + 1 :]]).mean(dim=0)
        observed = [gradient.detach() for gradient in gradient_of(inputs, target)]
        recovered = inverted(
            gradient_of, observed, mean_window[None, None], torch.zeros_like(target)
        )
        truth.append(first_windows[row].numpy())
        guess.append(recovered.flatten().numpy())
        blind.append(mean_window.numpy())
    truths, guesses, blinds = (np.stack(rows) for rows in (truth, guess, blind))
    errors, without = (np.square(estimates - truths).sum(axis=1) for estimates in (guesses, blinds))
    share = bootstrapped(lambda drawn: 1 - errors[drawn].sum() / without[drawn].sum(), TRIES)
    matched = float(
        np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(guesses, truths, strict=True)])
    )
    says = "one window's gradient: its inputs"
    return Reconstruction(says, guesses, share, matched)
