"""The way of a prototype, traced: the files whose functions handle it and the forms that it takes.

    python -m benchmarks.prototype_way            # the functions, and the table
    python -m benchmarks.prototype_way --page     # also writes the table into docs/design.md

Two nodes run FUELS for two rounds in this process. Every call of a function of the package is
searched: the function handles the prototype if an argument or the result holds an array with the
prototype's rows and columns, at any depth. The run's sizes are chosen so that no other array looks
like it. The form is the class of the package, or Flower's record, that holds the array.

Not counted are `self`, messages that stay sealed, the engine, which moves messages between
processes, and what saves the run: checkpoints, files of the run folder, findings.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType

from flwr.app import ArrayRecord

from benchmarks.in_process import conducted
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import parser_of
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import Context
from fedproto_app.tasks.table import small_run

ROWS, WIDTH = 24, 37  # of the prototype: phases of a period, and a width that nothing else has
DEPTH = 6  # of containers that are searched
PACKAGE = ROOT / "fedproto_app"
BESIDE = ("engine/", "report/", "server/checkpoint.py", "strategies/common/findings.py")
PAGE, SECTION, MAKER = ROOT / "docs" / "design.md", "prototype-way", "benchmarks.prototype_way"


class Trace:
    """The files that handle the prototype and the forms that it takes, in the order of the way.

    files: the functions of each file. forms: the first file that has a form.
    """

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {}
        self.forms: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        """Note the prototype among the arguments or in the result, as `sys.setprofile` calls it."""
        path, code = frame.f_code.co_filename, frame.f_code
        file = path.removeprefix(f"{PACKAGE}/")
        if event not in ("call", "return") or file == path or file.startswith(BESIDE):
            return
        values: list[object] = [result]
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = [frame.f_locals[name] for name in names if name not in ("self", "cls")]
        for value in values:
            for form in forms_of(value):
                self.files.setdefault(file, set()).add(code.co_name)
                if form:
                    self.forms.setdefault(form, file)

    def table(self) -> list[str]:
        """Return the table for the page, and the line that counts."""
        rows = [
            (
                f"`{file}`",
                ", ".join(f"`{form}`" for form, first in self.forms.items() if first == file),
            )
            for file in self.files
        ]
        counts = f"{len(self.files)} files, {len(self.forms)} forms: `python -m {MAKER}`."
        return [*table_texts([("file", "new form"), *rows], texts=None), "", counts]


def forms_of(value: object, depth: int = DEPTH) -> Iterator[str]:
    """Yield the class around each prototype in the value, "" for a bare array or container."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape[-2:] == (ROWS, WIDTH):
        yield ""
    elif depth:
        name = type(value).__name__ if is_form(value) else ""
        for part in parts_of(value):
            for inner in forms_of(part, depth - 1):
                yield inner
                if name:
                    yield name


def is_form(value: object) -> bool:
    module = type(value).__module__
    return isinstance(value, ArrayRecord) or module.startswith("fedproto_app.")


def parts_of(value: object) -> Iterator[object]:
    """Yield what a container or a record holds."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif is_dataclass(value) and is_form(value):
        yield from (getattr(value, field.name, None) for field in fields(value))
    elif isinstance(value, Context):
        yield from vars(value).values()


def traced() -> Trace:
    """Return the trace of a run of two nodes and two rounds."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            **AT_ONCE,
            "method": "fuels",
            "rounds": 2,
            "data.period": ROWS,
            "fuels.prototype-dim": WIDTH,
            "model.representation-dim": 18,
            "output.dir": folder,
            "output.name": "run",
        }
        settings = settings_from({**small_run("forecasting"), **changes})
        grid = LocalGrid(settings, nodes_sharing(settings.data, 2, Path(folder) / "state"))
        sys.setprofile(trace)
        try:
            conducted(grid, settings)
        finally:
            sys.setprofile(None)
    return trace


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help="also write docs/design.md")
    to_page = parser.parse_args().page
    trace = traced()
    for file, functions in trace.files.items():
        print(f"{file}: {', '.join(sorted(functions))}")
    print("\n".join(trace.table()))
    if to_page:
        write_section(PAGE, SECTION, MAKER, trace.table())


if __name__ == "__main__":
    main()
