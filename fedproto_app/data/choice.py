"""Choose the clients and columns of a source that take part."""

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
# The sources that read each of these keys; a user's own function may read all keys.
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

_SHOWN_NAMES = 5  # available names listed in a message


def chosen(
    clients: Iterable[T], name_of: Callable[[T], str], settings: DataSettings, where: str
) -> list[T]:
    """Return the first ``data.max-clients`` of the chosen clients, in the source's order.

    where: the source's name in messages. Raises `DataError` for a client that the source lacks.
    """
    chosen_names = settings.choice.clients
    if chosen_names:
        candidates = list(clients)
        require_available(
            chosen_names, [name_of(client) for client in candidates], "clients", "client", where
        )
        clients = [client for client in candidates if name_of(client) in chosen_names]
    return list(islice(clients, settings.max_clients or None))


def require_meaning(settings: DataSettings) -> None:
    """Raise `SettingsError` for a key that the source ignores, so nobody believes it has effect."""
    for field, sources in ONLY_SOURCES.items():
        value, key = getattr(settings, field), field.replace("_", "-")
        if value == DataSettings.model_fields[field].default or ":" in settings.source:
            continue
        if settings.source not in sources:
            hint = ""
            if field == "columns" and settings.source.startswith("wide-"):
                hint = "; there a column is a client: data.clients"
            raise SettingsError(
                f"data.{key} = {value!r}: for data.source = {' or '.join(map(repr, sources))}, "
                f"not for {settings.source!r}{hint}"
            )


def require_available(
    names: Iterable[str], available: Sequence[str], key: str, noun: str, where: str
) -> None:
    """Raise `DataError` if ``data.<key>`` names something unavailable."""
    for name in names:
        if name not in available:
            more = f", … ({len(available)} in all)" if len(available) > _SHOWN_NAMES else ""
            raise DataError(
                f"data.{key}: {where} has no {noun} {name!r}; {did_you_mean(name, available)}"
                f"it has {', '.join(available[:_SHOWN_NAMES])}{more}"
            )
