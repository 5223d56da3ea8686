"""The values of ``data.source``, and how the format of a path is recognised.

A format is a module in ``data/formats/`` with a record ``FORMAT``. This record holds everything
that the app knows of the format, which is listed nowhere else. A value ``package.module:NAME``
names a function or a `Source` in a user's module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal

import numpy as np
from pydantic import ValidationError

from fedproto_app.core.errors import DataError
from fedproto_app.data import formats
from fedproto_app.data.clock import Clock
from fedproto_app.data.files import open_tree
from fedproto_app.data.npz_archive import open_archive
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

PathKind = Literal["no path", "a file", "a folder", "a file or a folder"]
Changes = dict[str, str | bool]  # settings by dotted keys
Answers = Mapping[str, object]  # settings that a person has made, by dotted keys
CovariateReader = Callable[[DataSettings, Clock | None], Iterator[ClientSeries]]

_DEEPEST = 8  # levels of nested folders that are searched


@dataclass(frozen=True)
class Source:
    """A value of ``data.source``.

    name: the value. holds: the kind of data, as in the table of tasks. load: returns the clients or
    the pool that the settings choose. path: what ``data.path`` must be. keys: the fields of
    `DataSettings` that this source uses but some others do not. hints: what to set instead of a
    field that this source does not use. form: the form of its tables, or "".
    """

    name: str
    holds: str
    load: Callable[[DataSettings], object]
    path: PathKind = "a file"
    keys: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    form: Literal["", "wide", "long", "folder"] = ""


class Fit(IntEnum):
    """How well a format fits a path. The format that fits best reads the path."""

    NONE = 0
    NAME = 1  # possible according to the path's name
    WEAK = 2  # possible according to the content
    STRONG = 3
    CERTAIN = 4  # no other format has such a content


class Candidate:
    """A path to be recognised. What its folder or archive holds is looked up only once."""

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.is_folder = path, path.name.lower(), path.is_dir()

    @cached_property
    def files(self) -> list[str]:
        """The names of the files in a folder or a zip archive, with slashes, without hidden files.

        [] if the path is neither, or if the archive is damaged.
        """
        if not self.is_folder:
            try:
                with open_tree(self.path) as tree:
                    return tree.names()
            except (DataError, OSError):
                return []
        names: list[str] = []
        for folder, folders, files in os.walk(self.path):
            inside = Path(folder).relative_to(self.path)
            is_deepest = len(inside.parts) == _DEEPEST
            folders[:] = [name for name in folders if name[0] != "." and not is_deepest]
            names += [(inside / name).as_posix() for name in files if name[0] != "."]
        return sorted(names)

    @property
    def files_beside(self) -> list[Path]:
        """The paths of the files that lie directly in the folder."""
        return [self.path / name for name in self.files if "/" not in name]

    @cached_property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """The shape and type of each array of an npz archive, or {} if the path is no archive.

        If an array is damaged, only the arrays before it are listed.
        """
        arrays = {}
        try:
            with open_archive(self.path) as archive:
                for name in archive.names:
                    arrays[name] = archive.header(name)
        except (DataError, OSError):
            pass
        return arrays


OF_IMAGES = ("pretrained_encoder",)  # keys of all sources of images


@dataclass(frozen=True)
class Reading:
    """The settings that read a path: the source, and other settings by their keys.

    notes: remarks for a person, one per line. left_out: one line for each column that is not read,
    with the reason. is_guess: True if nothing in the file shows its format. target: the column of a
    table that is forecast, "" if every column is a client. beside: further columns of a long table,
    which the person may know in advance.
    """

    source: str
    settings: Changes = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_guess: bool = False
    target: str = ""
    beside: tuple[str, ...] = ()

    @property
    def all_settings(self) -> Changes:
        """All settings, including the source."""
        return {"data.source": self.source, **self.settings}

    @property
    def fields(self) -> dict[str, object]:
        """All settings, validated, by the names of their fields in `DataSettings`.

        Raises `DataError` if a setting cannot name the columns, such as two of the same name.
        """
        values = {key.removeprefix("data."): value for key, value in self.all_settings.items()}
        try:
            data_settings = DataSettings.model_validate(values)
        except ValidationError as error:
            faults = "; ".join(fault["msg"] for fault in error.errors())
            raise DataError(f"the recognised settings are not valid: {faults}") from None
        names = (key.replace("-", "_") for key in values)
        return {name: getattr(data_settings, name) for name in names}

    @property
    def form(self) -> str:
        """The form of the table: wide, long or folder, or "" for other data."""
        source = all_sources().get(self.source)
        return source.form if source else ""

    def fitting(self, answers: Answers) -> dict[str, object]:
        """Return the person's settings, adapted to this source.

        If columns are clients, as in a wide table, a column to forecast becomes a chosen client.
        """
        source = all_sources().get(self.source)
        is_client = source and source.holds == "series" and "columns" not in source.keys
        return {
            "data.clients" if is_client and key == "data.columns" else key: value
            for key, value in answers.items()
        }


def by_name(*endings: str) -> Callable[[Candidate], Fit]:
    """Return a `Format.fit` that accepts files with these endings, given in lower case."""
    return lambda candidate: (
        Fit.NAME if candidate.name.endswith(endings) and not candidate.is_folder else Fit.NONE
    )


by_name_of_none = by_name()  # a source without a path


@dataclass(frozen=True)
class Format:
    """A format of files, or an embedded data set.

    sources: one source, or several if the same files can be read in several ways. paths: what a
    person must name, in words, such as "an .h5 file", or "" for data without a path. fit: returns
    how well a path fits. reading: returns the settings that read a path, given the person's
    answers. If it is None, the first source reads it without further settings. covariates: reads a
    table of columns known in advance for series with a given clock, see `known_columns`. It is None
    if the format has no tables.
    """

    sources: tuple[Source, ...]
    paths: str = ""
    fit: Callable[[Candidate], Fit] = by_name_of_none
    reading: Callable[[Candidate, Answers], Reading] | None = None
    covariates: CovariateReader | None = None

    def read(self, candidate: Candidate, answers: Answers) -> Reading:
        """Return the settings that read the path."""
        if self.reading is None:
            return Reading(self.sources[0].name)
        return self.reading(candidate, answers)


def all_formats() -> dict[str, Format]:
    """Return all formats. The keys are the names of their modules, in alphabetical order."""
    names = sorted(module.name for module in iter_modules(formats.__path__))
    return {name: import_module(f"{formats.__name__}.{name}").FORMAT for name in names}


def all_sources() -> dict[str, Source]:
    """Return the sources of all formats, by name."""
    return {source.name: source for form in all_formats().values() for source in form.sources}


def sources_of(holds: str) -> dict[str, Source]:
    """Return the sources that hold this kind of data, by name."""
    return {name: source for name, source in all_sources().items() if source.holds == holds}


def fields_of_some_sources() -> tuple[str, ...]:
    """Return the fields of `DataSettings` that some sources use and others ignore."""
    keys = {key for source in all_sources().values() for key in source.keys}
    return tuple(name for name in DataSettings.model_fields if name in keys)
