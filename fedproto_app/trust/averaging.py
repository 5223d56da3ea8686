"""Average clients' values: by the mean, or by a rule that is robust against hostile clients.

Strategies use the run's `Averaging`. They need not know its rule, or whether values have noise.

Most rules are Flower's: coordinate-wise median and trimmed mean (Yin et al., ICML 2018), Krum and
Multi-Krum (Blanchard et al., NeurIPS 2017). The clipped mean is ours: if a client's model differs
from the model of the round by more than the median length, this difference is shortened to it
before the mean is taken.

The robust means of a client's group and the robust totals of sums take all their weights from
comparisons between clients, never from what a client claims about itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low
from typing import Protocol

import numpy as np
import torch
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, MultiKrum
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import mean_of
from fedproto_app.core.wire import flower_average_input, numpy_arrays
from fedproto_app.maths.class_gaussian import ClassSums, class_means, own_scatter
from fedproto_app.maths.divergence import Combine as GroupRule
from fedproto_app.maths.ridge import solve
from fedproto_app.settings import AggregationSettings, PrivacyPlan
from fedproto_app.settings.aggregation import FACTOR

_COPIES = (
    3  # of a client's model in memory: the message's bytes, the arrays, and the stacked arrays
)

_MOST_RAISED = 10.0  # largest factor by which a client's sums are scaled up
_RIDGE = 1e-3  # times the mean square. With it, each client has a fit
Middle = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # [N, …] → […]


def clipped(models: Sequence[Arrays], before: Arrays) -> list[Arrays]:
    """Return the models. Each step from `before` that is longer than the median is shortened to it.

    Lengths are Euclidean, over all arrays together. For an even number of steps the lower median is
    used, because half of the clients cannot raise it.
    """
    steps = [{name: value - before[name] for name, value in model.items()} for model in models]
    lengths = [
        math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in step.values()))
        for step in steps
    ]
    limit = median_low(lengths) if lengths else 0.0
    return [
        model
        if length <= limit
        else {name: before[name] + np.float32(limit / length) * step[name] for name in step}
        for model, step, length in zip(models, steps, lengths, strict=True)
    ]


class Sums(Protocol):
    """Clients' sums, with totals that withstand hostile clients and noise."""

    def plain_totals(self) -> Arrays:
        """Return the totals of all clients' sums."""

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return totals that are robust against hostile clients."""

    def sample_bound(self, clip: float) -> float:
        """Return the largest length that a sample, clipped to `clip`, adds to all sums together."""

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        """Return totals with noise, corrected to values that true totals can have.

        deviation: the standard deviation of the noise on each entry.
        """


class Averaging:
    """The averaging rule of a run, and the noise that its clients add, if any."""

    def __init__(self, settings: AggregationSettings, plan: PrivacyPlan | None = None) -> None:
        self._settings, self._rule, self._plan = settings, settings.rule, plan

    @property
    def is_mean(self) -> bool:
        """Whether clients are weighted by their samples. All other rules weight them equally,
        because a hostile client may claim many samples."""
        return self._rule == "mean"

    @property
    def checks_sums(self) -> bool:
        """Whether a client's sums can be checked against its samples. With noise they cannot."""
        return self._plan is None

    def rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the average […] of the clients' rows [N, …], by a rule that suits single rows.

        For the mean and the trimmed mean this is the same rule. For every other robust rule it is
        the median, because distances between a few numbers, and their lengths, say little.
        """
        if self._rule == "mean":
            return mean_of(rows)
        if self._rule != "trimmed-mean":
            return np.asarray(np.median(rows, axis=0), dtype=np.float32)
        from scipy.stats import trim_mean  # takes a second, and nodes import this module too

        return np.asarray(trim_mean(rows, self._settings.hostile_share), dtype=np.float32)

    def groups(self) -> GroupRule | None:
        """Return the rule for averaging the rows of a group, or None for the mean.

        The mean is not safe here. A number that is added to all values of a row does not change its
        divergence from other rows. A hostile client that copies another's prototype therefore stays
        that client's partner, whatever number it adds.
        """
        if self._rule == "mean":
            return None
        if self._rule == "clipped-mean":
            return shortened_mean
        return lambda members, flat, _: middle_of_members(members, flat, self.rows)

    def kept(self, clients: int) -> int:
        """Return how many clients a method that ranks clients should keep with this rule.

        The trimmed mean and Multi-Krum drop the hostile share, the median drops half of all
        clients, Krum drops all but the best client, and the clipped mean drops none.
        """
        numbers = {"clipped-mean": clients, "median": clients // 2 + 1, "krum": 1}
        return numbers.get(self._rule, clients - math.floor(self._settings.hostile_share * clients))

    def model(self, models: Sequence[tuple[Arrays, int]], before: Arrays) -> Arrays | None:
        """Return the average of weighted models, by Flower's strategies, or None without models.

        before: the model that the clients' training began with.
        """
        clients, share = len(models), self._settings.hostile_share
        hostile = math.floor(share * clients)
        selected = 1 if self._rule == "krum" else max(1, clients - hostile)
        rule: FedAvg
        match self._rule:
            case "median":
                rule = FedMedian()
            case "trimmed-mean":
                rule = FedTrimmedAvg(beta=share)
            case "krum" | "multi-krum":
                rule = MultiKrum(num_malicious_nodes=hostile, num_nodes_to_select=selected)
            case _:
                rule = FedAvg()
        updates = [arrays for arrays, _ in models]
        if self._rule == "clipped-mean":
            updates = clipped(updates, before)
        weights = [weight for _, weight in models]
        messages = map(flower_average_input, updates, weights)
        record, _ = rule.aggregate_train(0, messages)
        if record is None:
            return None
        # Flower multiplies by Python floats, which should keep float32.
        assert all(array.dtype == "float32" for array in record.values())
        return numpy_arrays(record)

    def require_room(self, clients: int, values: int) -> None:
        """Raise `FederationError` if the clients' models need too much memory at the server.

        values: the number of values of one model.
        """
        megabytes = _COPIES * clients * 4 * values / 1e6
        if megabytes > self._settings.most_megabytes:
            raise FederationError(
                f"aggregation.most-megabytes = {self._settings.most_megabytes}: the models of "
                f"{clients} clients, {values} values each, take {megabytes:.0f} MB at the server; "
                "raise this limit, or lower participation"
            )

    def totals(self, sums: Sums, samples: Sequence[int]) -> Arrays:
        """Return the totals over all clients, corrected by `Sums.usable` if they contain noise.

        samples: the number of samples of each client.
        """
        if self._rule != "mean":
            return sums.robust_totals(self)
        totals, plan = sums.plain_totals(), self._plan
        if plan is None:
            return totals
        moved = samples if plan.settings.unit == "client" else [1] * len(samples)
        sensitivity = sums.sample_bound(plan.settings.clip) * FACTOR[plan.settings.neighbours]
        deviation = (
            plan.noise_multiplier * sensitivity * math.sqrt(sum(count**2 for count in moved))
        )
        return sums.usable(totals, deviation)

    def masked_totals(self, sums: Sums, totals: Arrays, most_samples: int) -> Arrays:
        """Return totals of a masked sum with noise, corrected by `Sums.usable`.

        most_samples: the largest number of samples that is counted for a client.
        """
        assert self._plan is not None
        moved = most_samples if self._plan.settings.unit == "client" else 1
        bound = sums.sample_bound(self._plan.settings.clip) * moved
        return sums.usable(totals, self.deviation(bound, clients=1))

    def deviation(self, length: float, clients: int) -> float:
        """Return the largest deviation of the noise on each entry of a total, or 0 without noise.

        length: the most that a client can change the total. clients: the number of clients. In a
        masked sum, the noise is made for the fewest possible survivors, which are more than
        `aggregation.secure-share` of the nodes.
        """
        if self._plan is None:
            return 0.0
        noise = self._plan.noise_multiplier * length * FACTOR[self._plan.settings.neighbours]
        rules = self._settings
        return noise * math.sqrt(1 / rules.secure_share if rules.secure else clients)


def shortened_mean(members: Tensor, flat: Tensor, rows: Tensor) -> Tensor:
    """Return for each client its own values, moved by the mean of its members' differences.

    A difference is how far a member's values lie from the client's own. If it is longer than the
    client's median distance to all other clients, members or not, it is shortened to this median.
    Fewer than half of the clients cannot raise the median, even if all of them are members, and the
    result is at most this far from the client's own values. This is centred clipping (Karimireddy,
    He and Jaggi, ICML 2021) with the client's values as the centre.

    members: [K, N] bool. flat: [N, D]. rows: [K], the clients' own rows of flat.
    Returns [K, D], with zeros for a client without members.
    """
    means = torch.zeros(len(rows), flat.shape[1], dtype=flat.dtype)
    for place, row in enumerate(rows.tolist()):
        apart = flat.double() - flat[row].double()
        lengths = apart.norm(dim=1)
        distances = torch.cat([lengths[:row], lengths[row + 1 :]])
        limit = distances.median() if len(distances) else lengths.new_zeros(())  # of two, the lower
        chosen = members[place]
        if chosen.any():
            factors = (limit / lengths[chosen].clamp(min=1e-300)).clamp(max=1)
            moved = (factors.unsqueeze(1) * apart[chosen]).mean(dim=0)
            means[place] = (flat[row].double() + moved).to(flat.dtype)
    return means


def middle_of_members(members: Tensor, flat: Tensor, middle: Middle) -> Tensor:
    """Return for each client the middle of its members' rows, [K, D], or zeros without members.

    members: [K, N] bool. flat: [N, D].
    """
    middles = torch.zeros(len(members), flat.shape[1], dtype=flat.dtype)
    for place, chosen in enumerate(members):
        if chosen.any():
            middles[place] = torch.from_numpy(middle(flat[chosen].numpy()))
    return middles


def levelled(gram: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Scale every client's sums so that their squares equal the median over clients.

    gram: [N, H, d, d]. moment: [N, H, d, 1], float64. The squares are the trace of the gram matrix,
    so the number of samples that a client claims does not matter. The client's own solution does
    not change. A client whose squares are less than a tenth of the median is scaled up only by
    `_MOST_RAISED`, because a large moment beside almost no squares would otherwise dominate.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(dim=(1, 2)).clamp(min=1e-30)
    factors = (squares.median() / squares).clamp(max=_MOST_RAISED)[:, None, None, None]
    return gram * factors, moment * factors


def fit(gram: Tensor, moment: Tensor, relative: float = _RIDGE) -> Tensor:
    """Return each client's fit [..., H, d], from the float64 matrices A = XᵀX [..., H, d, d]
    and XᵀY [..., H, d, 1]. relative: the ridge as a multiple of the mean of A's diagonal."""
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(dim=(-2, -1)).clamp(min=1e-30)
    ridge = relative * mean_square[..., None, None, None] * torch.eye(gram.shape[-1]).double()
    return solve(gram + ridge, moment, 1e-30)[..., 0]


def judged(gram: Tensor, moment: Tensor) -> Tensor:
    """Return the excess error [N] of each client's fit on the other clients' samples.

    Sums can serve as a validation set. Let client k have A_k = XᵀX and the fit W_k. On its samples,
    the squared error of any W exceeds the error of W_k by tr (W − W_k)ᵀ A_k (W − W_k), up to the
    small ridge. Each client is judged by all clients, and the lower median of their verdicts is
    used. Fewer than half of the clients cannot move it beyond an honest client's verdict. A client
    without a finite fit gets infinity.

    gram: [N, H, d, d]. moment: [N, H, d, 1]. Both are `levelled`, so all verdicts have the same
    scale.
    """
    fits = fit(gram, moment)
    solvable = fits.isfinite().all(dim=(1, 2))
    fits = torch.where(solvable[:, None, None], fits, 0.0)
    verdicts = [
        torch.einsum("nhd,hde,nhe->n", away, client_gram, away)
        for client_gram, client_fit, ok in zip(gram, fits, solvable, strict=True)
        if ok
        for away in [fits - client_fit]
    ]
    if not verdicts:
        return torch.full((len(gram),), torch.inf, dtype=torch.float64)
    scores = torch.stack(verdicts).median(dim=0).values
    return torch.where(solvable, scores, torch.inf)


def robust_class_sums(clients_sums: Callable[[], Iterable[ClassSums]], middle: Middle) -> ClassSums:
    """Return robust totals of the clients' sums by class, each with a gram matrix [D, D].

    The mean of a class is the `middle` of the means of the clients that have this class. For each
    client, at most the median number of samples is counted, and at most the median variance within
    classes.

    clients_sums: yields all clients' sums. It is called twice, because together the sums take
    gigabytes.
    """
    means, counts, spread = [], [], []
    for sums in clients_sums():
        within = own_scatter(sums).scatter
        means.append(class_means(sums.moment, sums.counts))
        counts.append(sums.counts)
        spread.append(within.diagonal().sum() / sums.counts.sum().clamp(min=1))
    numbers, variances = torch.stack(counts), torch.stack(spread)
    totals = numbers.sum(dim=1).clamp(min=1)
    seats = (totals.median() / totals).clamp(max=1)
    weights = (seats.unsqueeze(1) * numbers).sum(dim=0)  # (C,)
    centre = torch.zeros_like(means[0])
    for label in weights.nonzero().flatten().tolist():
        have = [
            client_means[label]
            for client_means, client_counts in zip(means, numbers, strict=True)
            if client_counts[label] > 0
        ]
        centre[label] = torch.from_numpy(middle(torch.stack(have).float().numpy())).double()
    moment = weights.unsqueeze(1) * centre
    gram = centre.T @ moment
    narrowed = seats * (variances.median() / variances.clamp(min=1e-30)).clamp(max=1)
    for factor, sums in zip(narrowed, clients_sums(), strict=True):
        gram += factor * own_scatter(sums).scatter
    return ClassSums(gram, moment, weights)
