"""Ridge regression in closed form, server half: check the clients' sums and add them up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Received
from fedproto_app.data.windows import lookback
from fedproto_app.maths.ridge import definite, sums_fault, symmetric, triangle
from fedproto_app.settings import DataSettings
from fedproto_app.strategies.analytic.learner import GRAM, MOMENT, sample_bound
from fedproto_app.strategies.common.client_sums import ClientSums, SumsStrategy
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.trust.averaging import Averaging, fit, judged, levelled
from fedproto_app.trust.outliers import FEWEST_AGREE, MOST_COMPARED

# On the scale of a client's train part, its values have mean square 1. A spike that is carried over
# a gap can raise this.
LARGEST_MEAN_SQUARE = 100.0

# The ridge of the fits that clients are judged by, in mean squares. Without it, a fit to few
# samples would say little about other clients.
SHRUNK = 0.3


class SumsOfRegressors(ClientSums):
    """XᵀX and Xᵀy for each step ahead.

    The values that set a client's scale have mean square 1 and include all its targets. There are
    as many of them as train samples, plus fewer than `_untrained` others: the look-back, and the
    rest of a period and of a horizon.
    """

    def __init__(
        self,
        federation: Federation,
        shapes: Mapping[str, tuple[int, ...]],
        received: Received,
        data: DataSettings,
    ) -> None:
        super().__init__(federation, shapes, received)
        self._untrained = lookback(data) + data.period + data.horizon

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        fault = self.impossible(sums, samples)
        return fault and f"its sums cannot be those of {samples} samples: {fault}"

    def impossible(
        self, sums: Arrays, samples: int, share: float = 1.0, clients: int = 1
    ) -> str | None:
        gram, moment = _unpacked(sums)
        squares = samples + clients * self._untrained
        return sums_fault(gram, moment, samples, LARGEST_MEAN_SQUARE, squares)

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Return the clients whose fits mislead most other clients."""
        latest = {key: self.latest.latest(key) for key in self.latest.clients}
        all_sums = {**{key: sums for key, sums in latest.items() if sums}, **reported}
        if len(all_sums) < FEWEST_AGREE:
            return {}
        errors = misfits(list(all_sums.values()))
        return {
            key: "its sums are not used: for most other clients its fit is worse than the mean, "
            f"with {error:.3g} times the mean's squared difference from their own fits"
            for key, error in zip(all_sums, errors, strict=True)
            if key in reported and error > 1
        }

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return totals with equal weights, without the clients whose fits suit the other clients'
        samples worst."""
        moment = torch.from_numpy(self.latest.stacked(MOMENT)).double().unsqueeze(-1)
        packed = torch.from_numpy(self.latest.stacked(GRAM)).double()
        gram, moment = levelled(symmetric(packed, moment.shape[-2]), moment)
        clients = len(gram)
        accepted = averaging.kept(clients)
        best = judged(gram, moment).sort(stable=True).indices[:accepted].sort().values
        # Scaled up to the samples of all clients, so that a penalty acts as on the plain totals.
        factor = clients / accepted
        total = {
            GRAM: triangle(gram[best].sum(dim=0)),
            MOMENT: moment[best].sum(dim=0).squeeze(-1),
        }
        return {name: (factor * value).float().numpy() for name, value in total.items()}

    def sample_bound(self, clip: float) -> float:
        return sample_bound(clip, self.shapes[GRAM][0])

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        width = self.shapes[MOMENT][-1]
        gram = symmetric(torch.from_numpy(totals[GRAM]).double(), width)
        packed = triangle(definite(gram, deviation)).float().numpy()
        return {**totals, GRAM: packed}


def misfits(clients_sums: Sequence[Arrays]) -> list[float]:
    """Return how badly each client's fit W suits the other clients' samples.

    On the samples of client k, with A = XᵀX and its fit V, the squared error of W exceeds V's by
    tr (W − V)ᵀA(W − V), and the error of a forecast of the client's mean exceeds V's by tr VᵀAV.
    If the ratio of these is above 1, the fit is worse than the mean. The result is the median
    ratio over the clients k, which fewer than half of them cannot raise. It was at most 0.62 for
    honest clients (207 detectors of METR-LA), and 2 to 4 for fits to opposite targets.

    clients_sums: the sums of N ≥ 2 clients, as sent. At most a hundred of the clients judge, and
    only their matrices are held unpacked, because the matrices of thousands would be gigabytes.
    """
    judges = torch.arange(0, len(clients_sums), math.ceil(len(clients_sums) / MOST_COMPARED))
    unpacked = [_unpacked(clients_sums[judge]) for judge in judges.tolist()]
    gram = torch.stack([of_judge for of_judge, _ in unpacked])  # (J, H, d, d)
    fits = torch.stack([fit(*of_judge, SHRUNK) for of_judge in unpacked])  # (J, H, d)
    of_mean = _squares(gram, fits).clamp(min=1e-30)
    medians = []
    for client, sums in enumerate(clients_sums):
        ratios = _squares(gram, fit(*_unpacked(sums), SHRUNK) - fits) / of_mean
        ratios[judges == client] = torch.nan  # nobody judges itself
        medians.append(float(ratios.nanmedian()))
    return medians


def _squares(gram: Tensor, fits: Tensor) -> Tensor:
    """Return tr WᵀAW for each pair of A [J, H, d, d] and W [J, H, d], [J]."""
    return torch.einsum("jhd,jhde,jhe->j", fits, gram, fits)


def _unpacked(sums: Arrays) -> tuple[Tensor, Tensor]:
    """Return one client's XᵀX [H, d, d] and Xᵀy [H, d, 1]."""
    moment = torch.from_numpy(sums[MOMENT]).double().unsqueeze(-1)
    return symmetric(torch.from_numpy(sums[GRAM]).double(), moment.shape[-2]), moment


class AnalyticStrategy(SumsStrategy):
    """XᵀX and Xᵀy for each step ahead."""

    def client_sums(self) -> SumsOfRegressors:
        shapes = [release.arrays for release in self.releases]
        return SumsOfRegressors(
            self.federation, shapes[0] if shapes else {}, self.received, self.settings.data
        )
