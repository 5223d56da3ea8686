"""Read .ts files of the UEA and UCR archive (Bagnall et al. 2018): ``@`` lines, then the cases.

Each case is one line with its dimensions and its class or target, separated by colons. A dimension
is a list of numbers, separated by commas. Cases may differ in length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_inside
from fedproto_app.data.format import Candidate, Fit, Format, Source
from fedproto_app.data.formats.csv_table import text_lines
from fedproto_app.data.sequences.pool import (
    NO_CLASS,
    SequencePool,
    float32_steps,
    numbered_dimensions,
)
from fedproto_app.settings import DataSettings

_TRAIN = "_TRAIN.ts"
_VERSIONS = ("_nmv", "_eq")
_COMMENTS = ("#", "%")
_UNKNOWN, _ = NO_CLASS  # the archive's sign for an unknown class
_TAGS = {
    "problemname", "timestamps", "missing", "univariate", "dimension", "dimensions", "equallength",
    "serieslength", "classlabel", "targetlabel",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """A file's header.

    classes: their names, () if the target is a number. dimensions: their number, 0 if not given.
    """

    classes: tuple[str, ...]
    dimensions: int


@dataclass(frozen=True)
class Case:
    """A case: its steps [T, d], and its class or target as text. where: its file and line."""

    steps: NDArray[np.float32]
    target: str
    where: str


def load_uea(settings: DataSettings) -> SequencePool:
    """Return the cases of one file, or of a folder with <name>_TRAIN.ts and <name>_TEST.ts.

    Only a folder has a test split. A `DataError` names the file and the line.
    """
    paths = split_files(Path(settings.path), ".ts")
    files = [_read(path) for path in paths]
    header, cases = files[0][0], [case for _, file_cases in files for case in file_cases]
    for path, (file_header, _) in zip(paths, files, strict=True):
        if set(file_header.classes) != set(header.classes):
            raise DataError(f"{path}: its @classLabel differs from that of {paths[0].name}")
    dimensions = cases[0].steps.shape[1]
    for case in cases:
        if case.steps.shape[1] != dimensions:
            raise DataError(
                f"{case.where}: {case.steps.shape[1]} dimensions, but {cases[0].where} has "
                f"{dimensions}"
            )
    classes = header.classes
    if classes and _UNKNOWN not in classes and any(case.target == _UNKNOWN for case in cases):
        classes += (_UNKNOWN,)
    return SequencePool(
        numbered_dimensions(dimensions),
        classes,
        [case.steps for case in cases],
        _labels(cases, classes) if classes else _numbers(cases),
        is_test=np.arange(len(cases)) >= len(files[0][1]) if len(files) == 2 else None,
    )


def split_files(path: Path, ending: str) -> list[Path]:
    """Return the file, or the files <name>_TRAIN and <name>_TEST with this ending of a folder."""
    if path.is_file():
        return [path]
    train, test = f"_TRAIN{ending}", f"_TEST{ending}"
    train_files = sorted(path.glob(f"*{train}"))
    if len(train_files) > 1:
        train_files = _one_version(train_files)
    if len(train_files) != 1:
        names = ", ".join(file.name for file in train_files) or "none"
        raise DataError(f"{path}: expected one file <name>{train}, found {names}")
    test_file = train_files[0].with_name(train_files[0].name.removesuffix(train) + test)
    if not test_file.is_file():
        raise DataError(f"{path}: {train_files[0].name} is there, but {test_file.name} is not")
    for file in (train_files[0], test_file):
        require_inside(file, path)
    return [train_files[0], test_file]


def _one_version(files: list[Path]) -> list[Path]:
    """Return the version to read if all files are versions of one problem, as in aeon's folders.

    This is the original, whose cases may differ in length. If values are missing in it, the version
    with filled values (nmv) is read, or else the version with cases of equal length (eq).
    """
    versions = {file.name.removesuffix(_TRAIN): file for file in files}
    for name, file in versions.items():
        candidates = [versions.get(name + version) for version in ("", *_VERSIONS)]
        if {candidate for candidate in candidates if candidate} == set(files):
            complete = (
                candidate for candidate in candidates if candidate and not _lacks_values(candidate)
            )
            return [next(complete, file)]
    return files


def _lacks_values(file: Path) -> bool:
    """Return whether the file's header says that values are missing."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            header = takewhile(lambda line: not line.strip().lower().startswith("@data"), lines)
            tags = (line.split() for line in header)
            return any([tag.lower() for tag in words[:2]] == ["@missing", "true"] for words in tags)
    except (OSError, UnicodeDecodeError):  # reported when the file is read
        return False


def _read(path: Path) -> tuple[Header, list[Case]]:
    tags: dict[str, list[str]] = {}
    numbered = enumerate(map(str.strip, text_lines(path, str(path))), start=1)
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
        raise DataError(f"{path}: @timeStamps true: steps with time stamps are not read")
    classes = tuple(tags["classlabel"][1:]) if _says(tags, "classlabel") else ()
    if bool(classes) == _says(tags, "targetlabel"):
        raise DataError(
            f"{path}: expected either '@classLabel true' with the classes' names, or "
            "'@targetLabel true'"
        )
    dimensions = (tags.get("dimensions") or tags.get("dimension") or ["0"])[0]
    if not dimensions.isdecimal():
        raise DataError(f"{path}: @dimensions {dimensions}: expected a number")
    return Header(classes, 1 if _says(tags, "univariate") else int(dimensions))


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


def _fit(candidate: Candidate) -> Fit:
    names = candidate.files_beside if candidate.is_folder else [Path(candidate.name)]
    return Fit.CERTAIN if any(path.suffix == ".ts" for path in names) else Fit.NONE


FORMAT = Format(
    (Source("uea-ts", "labelled sequences", load_uea, "a file or a folder"),),
    "a .ts file, or the folder of a train and a test file",
    _fit,
)
