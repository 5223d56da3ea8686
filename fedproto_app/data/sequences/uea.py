"""The .ts files of the UEA and UCR archive (Bagnall et al. 2018): ``@`` lines, then a case a line.

A case is its dimensions with colons between them, each a list of numbers with commas between them,
and last its class or its target. Cases may differ in length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.room import whole_content
from fedproto_app.data.sequences.pool import (
    NO_CLASS,
    SequencePool,
    float32_steps,
    numbered_dimensions,
)
from fedproto_app.data.source_checks import require_inside
from fedproto_app.data.text_table import decoded
from fedproto_app.settings import DataSettings

_TRAIN, _TEST = "_TRAIN.ts", "_TEST.ts"
_VERSIONS = ("_nmv", "_eq")
_COMMENTS = ("#", "%")
_UNKNOWN, _ = NO_CLASS  # the archive's own sign
_TAGS = {
    "problemname", "timestamps", "missing", "univariate", "dimension", "dimensions", "equallength",
    "serieslength", "classlabel", "targetlabel",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """classes: their names; () where the target is a number. dimensions: 0 if it does not tell."""

    classes: tuple[str, ...]
    dimensions: int


@dataclass(frozen=True)
class Case:
    """One line: steps [T, d], and the text of its class or target. where: file and line."""

    steps: NDArray[np.float32]
    target: str
    where: str


def load_uea(settings: DataSettings) -> SequencePool:
    """The pool of one file, or of a folder with <name>_TRAIN.ts and <name>_TEST.ts.

    Only the folder knows what is test. Raises `DataError` naming the file and the line.
    """
    paths = _paths(Path(settings.path))
    files = [_read(path) for path in paths]
    header, cases = files[0][0], [case for _, found in files for case in found]
    for path, (other, _) in zip(paths, files, strict=True):
        if set(other.classes) != set(header.classes):
            raise DataError(f"{path}: its @classLabel differs from that of {paths[0].name}")
    dimensions = cases[0].steps.shape[1]
    for case in cases:
        if case.steps.shape[1] != dimensions:
            raise DataError(
                f"{case.where}: {case.steps.shape[1]} dimensions, but {cases[0].where} has "
                f"{dimensions}"
            )
    is_test = None
    if len(files) == 2:
        is_test = np.arange(len(cases)) >= len(files[0][1])
    classes = header.classes
    if classes and _UNKNOWN not in classes and any(case.target == _UNKNOWN for case in cases):
        classes += (_UNKNOWN,)
    return SequencePool(
        numbered_dimensions(dimensions),
        classes,
        [case.steps for case in cases],
        _labels(cases, classes) if classes else _numbers(cases),
        is_test=is_test,
    )


def _paths(path: Path) -> list[Path]:
    """The one file, or the files of train and test."""
    if path.is_file():
        return [path]
    inside = path.resolve()
    found = _one_version(sorted(path.glob(f"*{_TRAIN}")))
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise DataError(f"{path}: expected one file <name>{_TRAIN}, found {names}")
    test = found[0].with_name(found[0].name.removesuffix(_TRAIN) + _TEST)
    if not test.is_file():
        raise DataError(f"{path}: {found[0].name} is there, but {test.name} is not")
    for one in (found[0], test):
        require_inside(one, inside)
    return [found[0], test]


def _one_version(found: list[Path]) -> list[Path]:
    """Of a problem in several versions, as aeon's folders have it, the one to read.

    That is the original, whose cases may differ in length; where it lacks values, the version in
    which these are filled (nmv) or else the one with cases of one length as well (eq).
    """
    versions = {file.name.removesuffix(_TRAIN): file for file in found}
    for name, file in versions.items():
        others = [versions.get(name + version) for version in ("", *_VERSIONS)]
        if {one for one in others if one} == set(found):
            complete = (one for one in others if one and not _lacks_values(one))
            return [next(complete, file)]
    return found


def _lacks_values(file: Path) -> bool:
    """Whether the file says so itself."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            tags = (line.split() for line in takewhile(lambda one: not _begins_data(one), lines))
            return any([tag.lower() for tag in one[:2]] == ["@missing", "true"] for one in tags)
    except (OSError, UnicodeDecodeError):  # its reader tells
        return False


def _begins_data(line: str) -> bool:
    return line.strip().lower().startswith("@data")


def _read(path: Path) -> tuple[Header, list[Case]]:
    lines = decoded(whole_content(path), str(path)).splitlines()
    tags: dict[str, list[str]] = {}
    numbered = enumerate(map(str.strip, lines), start=1)
    for number, line in numbered:
        if not line or line.startswith(_COMMENTS):
            continue
        tag, *values = line.split()
        tag = tag.lower()
        if tag == "@data":
            break
        if not tag.startswith("@") or tag[1:] not in _TAGS or not values:
            raise DataError(f"{path}: line {number}: {line[:40]!r} before @data: expected a tag")
        tags[tag[1:]] = values
    else:
        raise DataError(f"{path}: no line @data; not a file of the UEA and UCR archive")
    header = _header(tags, path)
    cases = [
        _case(line, header, f"{path}: line {number}")
        for number, line in numbered
        if line and not line.startswith(_COMMENTS)
    ]
    if not cases:
        raise DataError(f"{path}: no case after @data")
    return header, cases


def _header(tags: dict[str, list[str]], path: Path) -> Header:
    if _says(tags, "timestamps"):
        raise DataError(f"{path}: @timeStamps true: steps with times of their own are not read")
    classes = tuple(tags["classlabel"][1:]) if _says(tags, "classlabel") else ()
    if bool(classes) == _says(tags, "targetlabel"):
        raise DataError(
            f"{path}: expected either '@classLabel true' with the classes' names, or "
            "'@targetLabel true'"
        )
    given = (tags.get("dimensions") or tags.get("dimension") or ["0"])[0]
    if not given.isdecimal():
        raise DataError(f"{path}: @dimensions {given}: expected a number")
    return Header(classes, 1 if _says(tags, "univariate") else int(given))


def _says(tags: dict[str, list[str]], tag: str) -> bool:
    return tags.get(tag, ["false"])[0].lower() == "true"


def _case(line: str, header: Header, where: str) -> Case:
    *dimensions, target = line.split(":")
    if not dimensions or (header.dimensions and len(dimensions) != header.dimensions):
        raise DataError(
            f"{where}: {len(dimensions)} dimensions and a label between colons, expected "
            f"{header.dimensions or 'some'}"
        )
    columns = [
        _values(text, f"{where}, dimension {number}")
        for number, text in enumerate(dimensions, start=1)
    ]
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise DataError(
            f"{where}: dimensions of different lengths, {lengths[0]} to {lengths[-1]} steps"
        )
    return Case(float32_steps(np.array(columns).T), target.strip(), where)


def _values(text: str, where: str) -> list[float]:
    cells = text.split(",")
    if any(cell.strip().lower() in ("?", "nan") for cell in cells):
        raise DataError(f"{where}: a value is missing; sequences must be complete")
    try:
        return [float(cell) for cell in cells]
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def _labels(cases: Iterable[Case], classes: tuple[str, ...]) -> NDArray[np.int64]:
    label_of = {name: label for label, name in enumerate(classes)}
    for case in cases:
        if case.target not in label_of:
            raise DataError(f"{case.where}: class {case.target!r} is not in @classLabel")
    return np.array([label_of[case.target] for case in cases], dtype=np.int64)


def _numbers(cases: Iterable[Case]) -> NDArray[np.float64]:
    numbers = []
    for case in cases:
        try:
            numbers.append(float(case.target))
        except ValueError:
            raise DataError(f"{case.where}: target {case.target!r} is not a number") from None
    return np.array(numbers)
