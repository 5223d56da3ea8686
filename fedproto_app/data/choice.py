"""What of a source takes part: the clients and columns that a node names, the first so many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from fedproto_app.core.errors import DataError, SettingsError, did_you_mean
from fedproto_app.settings import DataSettings

_SEQUENCES = ("sequence-folder", "recordings")
_LONG = ("long-csv", "long-parquet")
_FOLDERS = ("csv-folder", "parquet-folder")
_SERIES = ("wide-csv", "wide-parquet", *_LONG, *_FOLDERS)
_TEXTS = ("wide-csv", "long-csv", "csv-folder", *_SEQUENCES)
# The sources for which these keys mean something; a user's own function may read all keys.
ONLY_SOURCES = {
    "columns": (*_LONG, *_FOLDERS, *_SEQUENCES),
    "time_column": (*_SERIES, *_SEQUENCES),
    "client_column": _LONG,
    "time_unit": _SERIES,
    "header": _TEXTS,
    "delimiter": _TEXTS,
    "decimal": _TEXTS,
}

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


def require_meaning(settings: DataSettings) -> None:
    """Refuse a key that the source does not read: it would look as if it had an effect."""
    for field, sources in ONLY_SOURCES.items():
        given, key = getattr(settings, field), field.replace("_", "-")
        if given == DataSettings.model_fields[field].default or ":" in settings.source:
            continue
        if settings.source not in sources:
            hint = ""
            if field == "columns" and settings.source.startswith("wide-"):
                hint = "; there a column is a client: data.clients"
            raise SettingsError(
                f"data.{key} = {given!r}: for data.source = {' or '.join(map(repr, sources))}, "
                f"not for {settings.source!r}{hint}"
            )


def require_there(
    wanted: Iterable[str], there: Sequence[str], key: str, what: str, where: str
) -> None:
    """Refuse a name of ``data.<key>`` that is not there; names some that are."""
    for name in wanted:
        if name not in there:
            more = f", … ({len(there)} in all)" if len(there) > _NAMED else ""
            raise DataError(
                f"data.{key}: {where} has no {what} {name!r}; {did_you_mean(name, there)}it has "
                f"{', '.join(there[:_NAMED])}{more}"
            )
