"""How large both packages are, the app's room by room, and which room imports which.

    python -m benchmarks.structure            # the tables
    python -m benchmarks.structure --page     # also writes the figures into docs/design.md

The rooms and their order come from the import-linter contract in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import grimp
from rich.console import Console
from rich.table import Table
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks import prototype_way
from benchmarks.pages import ROOT, read_section, table_texts, write_section
from benchmarks.parts import parser_of

PACKAGE = "fedproto_app"
COMPARED = "fedproto_compared"  # further methods, which use the app as a user's package does
PAGE, SECTION, MAKER = ROOT / "docs" / "design.md", "size", "benchmarks.structure"
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def levels() -> list[list[str]]:
    """Return the rooms from the top down. Rooms of one level do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    return [[room.strip() for room in level.split("|")] for level in contract["layers"]]


def imports_between_rooms() -> Counter[tuple[str, str]]:
    """Count the modules of one room that import a module of another."""
    graph = grimp.build_graph(PACKAGE)
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules - {PACKAGE}:
        for imported in graph.find_modules_directly_imported_by(module) - {PACKAGE}:
            rooms = module.split(".")[1], imported.split(".")[1]
            if rooms[0] != rooms[1]:
                counts[rooms] += 1
    return counts


def files_of(room: str) -> list[Path]:
    """Return the Python files of a room, which is a folder or a single module."""
    place = ROOT / PACKAGE / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def lines_of(files: list[Path]) -> int:
    return sum(path.read_text().count("\n") for path in files)


def learner_hooks() -> list[str]:
    """Return the methods that a learner may override: public ones that are not final."""
    learner = _methods("learner.py", "Learner")
    final = [m for m in learner if "final" in map(ast.unparse, m.decorator_list)]
    return [m.name for m in learner if not m.name.startswith("_") and m not in final]


def strategy_methods() -> list[str]:
    """Return all methods of the base of strategies."""
    return [method.name for method in _methods("strategy.py", "BaseStrategy")]


def _methods(file: str, name: str) -> list[ast.FunctionDef]:
    tree = ast.parse((ROOT / PACKAGE / "strategies" / "common" / file).read_text())
    [definition] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return [node for node in definition.body if isinstance(node, ast.FunctionDef)]


def untyped() -> int:
    """Count how often the package names `Any`, imports left out."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / PACKAGE).rglob("*.py"))
    nodes = chain.from_iterable(map(ast.walk, trees))
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)


def upward(imports: Counter[tuple[str, str]]) -> int:
    """Count the imports of a room on the same level or above."""
    level_of = {room: number for number, level in enumerate(levels()) for room in level}
    return sum(n for (room, imported), n in imports.items() if level_of[imported] <= level_of[room])


class Figure(NamedTuple):
    """A line of the table on the page. aim: what the project wants it to be."""

    title: str
    value: str
    aim: str


def figures(imports: Counter[tuple[str, str]]) -> list[Figure]:
    """Return the figures on the page that a program can count."""
    package, compared, tests, benchmarks = (
        sorted((ROOT / name).rglob("*.py")) for name in (PACKAGE, COMPARED, "tests", "benchmarks")
    )
    lines = lines_of(package)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pages = [p.read_text() for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    words = sum(len(page.split()) for page in pages)
    *_, way = read_section(prototype_way.PAGE, prototype_way.SECTION, prototype_way.MAKER)
    return [
        Figure("a prototype's way, traced", way.partition(":")[0], "16 files, 7 forms"),
        Figure("files of the package", f"{len(package)}", "300"),
        Figure("lines of the package", _thousands(lines), "56.0k"),
        Figure(
            "files, lines of the compared methods' package",
            f"{len(compared)}, {_thousands(lines_of(compared))}",
            "",
        ),
        Figure("lines of tests", _thousands(lines_of(tests)), "50.0k"),
        Figure("lines of benchmarks", _thousands(lines_of(benchmarks)), "13.0k"),
        Figure(
            "lines of tests for each line of both packages",
            f"{lines_of(tests) / lines_of([*package, *compared]):.2f}",
            "0.80",
        ),
        Figure("`Any` in the package", f"{untyped()}", "250"),
        Figure("hooks of a learner", f"{len(learner_hooks())}", "14"),
        Figure("methods of the base strategy", f"{len(strategy_methods())}", "25"),
        Figure("imports that run upwards", f"{upward(imports)}", "0"),
        Figure("circles of modules", f"{circles()}", "0"),
        Figure("files of FUELS", f"{len(files_of('strategies/fuels'))}", "5"),
        Figure(
            "keys in pyproject.toml", f"{_keys(project['tool']['flwr']['app']['config'])}", "120"
        ),
        Figure("words of documentation", _thousands(words), "45.0k"),
        Figure("semicolons in a thousand words of documentation", _semicolons(pages), "2.0"),
    ]


def circles() -> int:
    """Count the groups of modules that import each other in a circle."""
    graph = grimp.build_graph(PACKAGE)
    modules = sorted(graph.modules)
    places = {module: place for place, module in enumerate(modules)}
    pairs = [
        (places[module], places[imported])
        for module in modules
        for imported in graph.find_modules_directly_imported_by(module)
    ]
    rows, columns = zip(*pairs, strict=True)
    matrix = coo_array(([1] * len(pairs), (rows, columns)), shape=(len(modules),) * 2)
    _, component = connected_components(matrix, connection="strong")
    return sum(size > 1 for size in Counter(component.tolist()).values())


def _thousands(count: int) -> str:
    return f"{count / 1000:.1f}k"


def _semicolons(pages: Iterable[str]) -> str:
    """Return the semicolons in a thousand words, code left out."""
    prose = [_CODE.sub("", page) for page in pages]
    words = sum(len(text.split()) for text in prose)
    return f"{1000 * sum(text.count(';') for text in prose) / words:.1f}"


def print_rooms(imports: Counter[tuple[str, str]]) -> None:
    rooms = Table("room", "files", "lines", "imports")
    for room in chain.from_iterable(levels()):
        imported = sorted(imported for importer, imported in imports if importer == room)
        files = files_of(room)
        rooms.add_row(room, str(len(files)), str(lines_of(files)), " ".join(imported))
    Console().print(rooms)


def _keys(table: dict[str, object]) -> int:
    return sum(_keys(value) if isinstance(value, dict) else 1 for value in table.values())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help="also write docs/design.md")
    arguments = parser.parse_args()
    imports = imports_between_rooms()
    print_rooms(imports)
    lines = table_texts([("figure", "now", "aim"), *figures(imports)])
    print("\n".join(lines))
    if arguments.page:
        write_section(PAGE, SECTION, MAKER, [*lines, "", f"`python -m {MAKER} --page`"])


if __name__ == "__main__":
    main()
