"""What rows of the table of methods answer: what fits, how many rounds, what sites must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedproto_app.errors import SettingsError

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings


def heads_can_be_compared(settings: Settings) -> None:
    if settings.task == "sequence-regression" and settings.fed_react.similarity == "class-norms":
        raise SettingsError(
            "fed-react.similarity = 'class-norms': a head of task = 'sequence-regression' has "
            "no classes; set 'cosine', 'centred-cosine' or 'predictions'"
        )


def clusters_can_be_chosen(settings: Settings) -> None:
    if settings.fed_react.clusters == 0:
        raise SettingsError(
            f"fed-react.clusters = 0: method = {settings.method!r} needs to know how many there are"
        )


def overlap_fits_the_clusters(settings: Settings) -> None:
    clusters_can_be_chosen(settings)
    if settings.flsc.overlap > settings.fed_react.clusters:
        raise SettingsError(
            f"flsc.overlap = {settings.flsc.overlap}: more than fed-react.clusters = "
            f"{settings.fed_react.clusters}"
        )


def clients_fill_the_clusters(settings: Settings, clients: int) -> None:
    if settings.fed_react.clusters > clients:
        raise SettingsError(
            f"fed-react.clusters = {settings.fed_react.clusters}: must be at most {clients}, the "
            "number of clients that can take part"
        )


def one(settings: Settings) -> int:
    """A closed form that looks at its data once."""
    return 1


def one_a_stage(settings: Settings) -> int:
    """A closed form that looks at each stage once; a source's own stages nobody knows yet."""
    if settings.task != "classification":
        return 1
    given = settings.data.partition.scheme == "given"
    return settings.rounds if given else settings.data.partition.stages


def a_stage_and_guesses(settings: Settings) -> int:
    """The closed form's: each stage once, and rounds in which clients guess classes."""
    return one_a_stage(settings) + settings.analytic.guess_rounds


def closed_form_can_be_had(settings: Settings) -> None:
    clusters_of_classes_can_be_found(settings)
    classes_can_be_guessed(settings)


def classes_are_guessed(settings: Settings) -> bool:
    return settings.analytic.guess_rounds > 0


def classes_can_be_guessed(settings: Settings) -> None:
    """Each guess is by what the round before gave, and tells of the same sequences again."""
    rounds, reason = settings.analytic.guess_rounds, ""
    if not rounds:
        return
    if settings.task != "sequence-classification":
        reason = f"task = {settings.task!r} has no samples without a label; set 0"
    elif settings.privacy.is_on:
        reason = (
            f"privacy.mechanism = {settings.privacy.mechanism!r} counts each sequence once; set 0"
        )
    elif settings.aggregation.secure:
        reason = (
            "aggregation.secure = true adds up the same sequences in every round, so that the sums "
            "of a node that misses one could be told by difference; set 0"
        )
    elif settings.evaluate_every != 1:
        reason = f"evaluate-every = {settings.evaluate_every}: it must be 1"
    elif settings.keep != "last" or settings.patience:
        wrong = (
            f"patience = {settings.patience}: set 0"
            if settings.keep == "last"
            else f"keep = {settings.keep!r}: set 'last'"
        )
        reason = f"{wrong}; the few validation sequences with a label cannot choose a round"
    if reason:
        raise SettingsError(f"analytic.guess-rounds = {rounds}: {reason}")


def clusters_of_classes_can_be_found(settings: Settings) -> None:
    """The closed form's: nothing may stand between the server and each client's sums."""
    if settings.analytic.sharing != "clustered":
        return
    reason = ""
    if settings.task == "forecasting":
        reason = "task = 'forecasting' has no classes; method = 'kindred' leans to similar clients"
    elif settings.aggregation.secure:
        reason = "aggregation.secure = true hides the sums of a client by which it finds clusters"
    elif settings.privacy.is_on:
        reason = f"the noise of privacy.mechanism = {settings.privacy.mechanism!r} hides clusters"
    elif settings.aggregation.rule != "mean":
        reason = (
            f"aggregation.rule = {settings.aggregation.rule!r} makes the sums of all alone; set "
            "'mean'"
        )
    if reason:
        raise SettingsError(f"analytic.sharing = 'clustered': {reason}")


def organisations_have_places(settings: Settings) -> None:
    if settings.fedgru.clusters > 1 and settings.graph.source == "file":
        raise SettingsError(
            "graph.source = 'file': weights of edges tell no places by which organisations could "
            "be clustered; set 'profiles', 'positions' or fedgru.clusters = 1"
        )


def pools_windows(settings: Settings) -> str:
    return "the clients of a community see each other's values"


def needs_the_graph_network(settings: Settings) -> str:
    return (
        "a client's model forecasts only with what the server makes of all clients' encodings, so "
        "no site could use it after the run; and the encoding of every sample leaves the client, "
        "from which a server that has the encoder can tell the values"
    )
