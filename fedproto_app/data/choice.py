"""What of a source takes part: the clients and columns that a node names, the first so many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

T = TypeVar("T")

_NAMED = 5  # of the names that there are, in messages


def chosen(
    clients: Iterable[T], name_of: Callable[[T], str], settings: DataSettings, where: str
) -> list[T]:
    """The clients that the node chose, in the source's order; of them ``data.max-clients``.

    where: the source in messages. Raises `DataError` for a name that the source does not have.
    """
    wanted = settings.choice.clients
    if wanted:
        there = list(clients)
        require_there(wanted, [name_of(one) for one in there], "clients", "client", where)
        clients = [one for one in there if name_of(one) in wanted]
    return list(islice(clients, settings.max_clients or None))


def require_there(
    wanted: Iterable[str], there: Sequence[str], key: str, what: str, where: str
) -> None:
    """Refuse a name of ``data.<key>`` that is not there; names some that are."""
    for name in wanted:
        if name not in there:
            more = f", … ({len(there)} in all)" if len(there) > _NAMED else ""
            raise DataError(
                f"data.{key}: {where} has no {what} {name!r}; it has "
                f"{', '.join(there[:_NAMED])}{more}"
            )
