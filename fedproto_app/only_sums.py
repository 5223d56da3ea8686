"""Which methods' servers need sums over clients alone, so that these may be masked, and why others'
do not (docs/secure-sum.md has the same table)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.errors import SettingsError

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings

NEEDS_SUMS: dict[str, str] = {  # what is summed
    **dict.fromkeys(
        ("fedavg", "fedavg-ft", "fedprox", "apfl", "ditto", "per-fedavg", "pfedme", "fedala"),
        "the weighted model",
    ),
    "knn-per": "the weighted model",
    "fcgcn": "the weighted model",
    "fedrep": "the weighted encoder",
    "gldp": "the encoder; prototypes and who has them, by class",
    "fedproto": "the prototype",
    "analytic": "the closed form's sums",
}

_HEADS = "compares clients' heads to cluster them"
NEEDS_MORE: dict[str, str] = {  # why
    "fuels": "compares clients' prototypes and makes one for each",
    "fed-react": _HEADS,
    "ifca": "averages by clusters, and which cluster a client chose is no sum over all",
    "flsc": "averages by clusters, and which clusters a client chose is no sum over all",
    "solo": "sends nothing",
    "naive": "sends nothing",
    "seasonal-naive": "sends nothing",
    "kindred": "compares clients' prototypes and weighs one's sums for another by them",
    "census": "holds each client's sums against those that it sent before and the others'",
    "fedpcl": "hands each client's prototype on to the others",
    "fedda": "clusters clients and weighs each one's model by its distance",
    "fedgru": "averages by clusters of clients, each of which would need a sum of its own",
    "fedtgp": "trains prototypes on each client's own",
    "creff": "holds each client's gradients against the others' before it averages them",
    "fedic": "makes an ensemble of the clients' own models",
    "cnfgnn": "needs each client's encodings for its graph network",
}


def require_sums(settings: Settings) -> None:
    """`SettingsError` if `aggregation.secure` is set and the server needs more than sums."""
    aggregation, name = settings.aggregation, settings.method
    if not aggregation.secure:
        return
    if aggregation.rule != "mean":
        raise SettingsError(
            f"aggregation.secure = true: aggregation.rule = {aggregation.rule!r} looks at each "
            "client's model, of which a masked sum shows none; only rule = 'mean' goes with it"
        )
    reason = "" if name in NEEDS_SUMS else NEEDS_MORE.get(name, "is not among those it knows")
    if reason:
        raise SettingsError(
            f"aggregation.secure = true: method = {name!r} {reason}; masked sums go with "
            f"{', '.join(NEEDS_SUMS)}"
        )
    if settings.privacy.is_on:
        raise SettingsError(
            f"aggregation.secure = true: what privacy.mechanism = {settings.privacy.mechanism!r} "
            "makes noisy is not masked yet; set one of the two"
        )
    if name == "analytic" and settings.analytic.sharing == "none":
        raise SettingsError(
            "aggregation.secure = true: analytic.sharing = 'none' sends nothing that could be "
            "masked; set 'federated' or 'shrunk'"
        )
