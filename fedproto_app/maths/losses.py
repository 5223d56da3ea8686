"""The losses of FUELS and of the methods compared with it, one value per client.

Sources: A = the AAAI 2025 paper, P = its preprint with appendix. Contrastive losses are computed in
log space: exp(1/0.02) = 5·10²¹ would overflow half precision and lose all digits in float32.
Shapes: K clients, B rows (phases of the period), D width of a representation or prototype.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional


def prediction_loss(prediction: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """Return the mean squared error over present targets (A, eq. 4; P, eq. 14): [K, …] → [K].

    A client without any present target in the batch has loss 0.
    """
    squared = ((target - prediction).square() * present).flatten(start_dim=1)
    return squared.sum(dim=1) / present.flatten(start_dim=1).sum(dim=1).clamp(min=1)


def cosine_matrix(first: Tensor, second: Tensor) -> Tensor:
    """Return cos of every row of first with every row of second: 2 × [K, B, D] → [K, B, B]."""
    return torch.bmm(_unit(first), _unit(second).transpose(1, 2))


def intra_client_loss(
    projected: Tensor, augmented: Tensor, filter_weight: Tensor, temperature: float, negatives: str
) -> Tensor:
    """Return the intra-client contrastive loss: [K, B, D], [K, B, D], filter W [K, B, B] → [K].

    With SM = exp(cos/τ) (P, eq. 3) and Z = ReLU(SM ⊙ W) (P, eq. 4), row b's true negatives are
    {i : Z[b,i] > 0} (P, eq. 5), which is {i : W[b,i] > 0} as SM is positive. The loss is the mean
    over b of
        −log( SM[b,b] / (SM[b,b] + Σ_i N[b,i]) )
    with N = Z for ``negatives="filtered"`` (P, eq. 6) and N = SM on the true negatives for
    ``"similarity"`` (A, eq. 2). There W has no gradient, so it receives the gradient that it would
    have under P (straight through).
    """
    log_similarity = cosine_matrix(projected, augmented) / temperature  # log SM, [K, B, B]
    is_negative = filter_weight > 0
    if negatives == "similarity":
        # Value 0; its gradient makes ∂L/∂W = SM / (SM[b,b] + Σ SM), as Z's would be at Z = SM.
        log_filter = filter_weight - filter_weight.detach()
    else:
        # log W for the negatives; the inner where keeps log's gradient finite elsewhere.
        log_filter = torch.where(is_negative, filter_weight, 1.0).log()
    log_negatives = torch.where(is_negative, log_similarity + log_filter, -torch.inf)
    log_positive = log_similarity.diagonal(dim1=1, dim2=2)  # log SM[b,b], [K, B]
    everything = torch.cat([log_positive.unsqueeze(2), log_negatives], dim=2)
    return (everything.logsumexp(dim=2) - log_positive).mean(dim=1)


def inter_client_loss(
    projected: Tensor, positive: Tensor, negative: Tensor, guided: Tensor, temperature: float
) -> Tensor:
    """Return the inter-client contrastive loss (A, eq. 3; P, eqs. 11 to 13): [K, B, D] each → [K].

    −log( e⁺ / (e⁺ + e⁻) ) = softplus( (cos(r', NR) − cos(r', PR)) / τ ), mean over the rows.
    guided: [K] bool, False for a client that has no positive or no negative prototype: loss 0.
    """
    unit = _unit(projected)
    toward = (unit * _unit(positive)).sum(dim=2)  # (K, B)
    away = (unit * _unit(negative)).sum(dim=2)
    return functional.softplus((away - toward) / temperature).mean(dim=1) * guided


def prototype_distance(representation: Tensor, prototype: Tensor) -> Tensor:
    """Return the mean squared distance to the global prototype (Tan et al. 2022, eq. 8).

    representation: [K, B, D]; prototype: [B, D]. Returns [K].
    """
    return (representation - prototype).square().mean(dim=(1, 2))


def prototype_contrast(representation: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Return ProtoNCE with the phases of the period as classes (our reading of Deng and Yang 2023).

    Row b should be similar to row b of each prototype and dissimilar to its other rows: the mean
    over b and m of
        −log( exp(cos(r_b, P_m,b) / τ) / Σ_j exp(cos(r_b, P_m,j) / τ) ).
    representation: [K, B, D]; prototypes: [M, B, D], of M clients, or M = 1 of all. Returns [K].
    """
    scaled = _cosines(representation, prototypes) / temperature  # (K, B, M, B)
    matching = scaled.diagonal(dim1=1, dim2=3)  # (K, M, B)
    return (scaled.logsumexp(dim=3) - matching.transpose(1, 2)).mean(dim=(1, 2))


def class_contrast(
    representation: Tensor,
    labels: Tensor,
    present: Tensor,
    prototypes: Tensor,
    has_prototype: Tensor,
    temperature: float,
) -> Tensor:
    """Return ProtoNCE over classes (our reading of Deng and Yang 2023).

    Sample b should be similar to the prototypes of its class y_b and dissimilar to the prototypes
    of other classes. The loss is the mean over the samples, and for each sample over the sets m of
    prototypes that have its class, of
        −log( exp(cos(r_b, P_m,y_b) / τ) / Σ_c exp(cos(r_b, P_m,c) / τ) ), c the classes in m.

    representation: [K, B, D]; labels, present: [K, B]; prototypes: [M, C, D], of M clients, or
    M = 1 of all; has_prototype: [M, C] bool, the classes of each set, at least one. A sample adds 0
    if no set has its class. Returns [K].
    """
    scaled = _cosines(representation, prototypes) / temperature  # (K, B, M, C)
    label = labels[:, :, None, None].expand(-1, -1, len(prototypes), 1)
    matching = scaled.gather(3, label).squeeze(3)  # (K, B, M)
    contrasts = scaled.masked_fill(~has_prototype, -torch.inf).logsumexp(dim=3) - matching
    has_class = has_prototype.T[labels]  # (K, B, M)
    mean = (contrasts * has_class).sum(dim=2) / has_class.sum(dim=2).clamp(min=1)
    return (mean * present).sum(dim=1) / present.sum(dim=1)


def class_likeness(representation: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
    """Return the cosine with the most similar prototype of each class, [K, n, D] → [K, n, C].

    prototypes: [M, C, D]; has_prototype: [M, C] bool. −∞ for a class without a prototype.
    """
    cosines = _cosines(representation, prototypes)
    return cosines.masked_fill(~has_prototype, -torch.inf).amax(dim=2)


def _cosines(representation: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosine of every row with every prototype: [K, B, D], [M, C, D] → [K, B, M, C]."""
    clients, rows, width = representation.shape
    directions = _unit(prototypes).reshape(-1, width)  # (M·C, D)
    return (_unit(representation) @ directions.T).view(clients, rows, *prototypes.shape[:2])


def proximal_term(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], proximal_mu: float
) -> Tensor:
    """Return FedProx's term µ/2 · ‖w − w_global‖² per client (Li et al. 2020, eq. 2).

    parameters: [K, …] each; anchor: the global model, without the client axis. Returns [K].
    """
    squares = [
        (parameters[name] - value).square().flatten(start_dim=1).sum(dim=1)
        for name, value in anchor.items()
    ]
    return proximal_mu / 2 * torch.stack(squares).sum(dim=0)


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=2, eps=1e-8)
