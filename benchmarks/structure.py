"""How large both packages are, the app's room by room, and which room imports which.

    python -m benchmarks.structure            # the table
    python -m benchmarks.structure --picture  # also draws docs/rooms.svg

The rooms and their order come from the import-linter contract in pyproject.toml.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from itertools import chain
from pathlib import Path

import grimp
import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PACKAGE = "fedproto_app"
COMPARED = "fedproto_compared"  # further methods, which use the app as a user's package does
PICTURE = ROOT / "docs" / "rooms.svg"


def levels() -> list[list[str]]:
    """Return the rooms from the top down; rooms of one level do not import each other."""
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


def hooks() -> dict[str, int]:
    """Count what an author of a method reads: a learner's hooks, and a strategy's methods.

    A hook is a public method that is not final.
    """
    strategy = _methods("strategy.py", "BaseStrategy")
    learner = _methods("learner.py", "Learner")
    final = [m for m in learner if "final" in map(ast.unparse, m.decorator_list)]
    public = [m for m in learner if not m.name.startswith("_") and m not in final]
    return {"hooks of a learner": len(public), "methods of BaseStrategy": len(strategy)}


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


def print_tables(imports: Counter[tuple[str, str]]) -> None:
    console = Console()
    rooms = Table("room", "files", "lines", "imports")
    for room in chain.from_iterable(levels()):
        imported = sorted(imported for importer, imported in imports if importer == room)
        files = files_of(room)
        rooms.add_row(room, str(len(files)), str(lines_of(files)), " ".join(imported))
    console.print(rooms)
    package = sorted((ROOT / PACKAGE).rglob("*.py"))
    compared = sorted((ROOT / COMPARED).rglob("*.py"))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    totals = Table("figure", "value", title="the whole")
    totals.add_row("Python files / lines in the package", f"{len(package)} / {lines_of(package)}")
    totals.add_row(
        "the same of the compared methods' package", f"{len(compared)} / {lines_of(compared)}"
    )
    totals.add_row(
        "lines of tests per line of both packages",
        f"{lines_of(tests) / lines_of([*package, *compared]):.2f}",
    )
    totals.add_row("files of FUELS", str(len(files_of("strategies/fuels"))))
    totals.add_row("keys in pyproject.toml", str(_keys(project["tool"]["flwr"]["app"]["config"])))
    for figure, count in hooks().items():
        totals.add_row(figure, str(count))
    totals.add_row("Any, of types that are not said", str(untyped()))
    totals.add_row("imports that run upwards", str(upward(imports)))
    totals.add_row("words of documentation", str(sum(len(p.read_text().split()) for p in pages)))
    console.print(totals)


def _keys(table: dict[str, object]) -> int:
    return sum(_keys(value) if isinstance(value, dict) else 1 for value in table.values())


def draw(imports: Counter[tuple[str, str]]) -> None:
    """Each level is a row of boxes; an arc leads from a room to a room that it imports.

    An arc that led upwards would be red.
    """
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rooms", "font.size": 11})
    rows = levels()
    figure = Figure(figsize=(6.6, 0.5 * (len(rows) + 1)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-3.2, 2.4), ylim=(-len(rows) + 0.4, 1.4))
    axes.axis("off")
    place = {
        room: (1.35 * column - 0.67 * (len(level) - 1), -row)
        for row, level in enumerate(rows)
        for column, room in enumerate(level)
    }
    for (room, other), count in sorted(imports.items()):
        start, end = place[room], place[other]
        is_left = start[0] < 0 or (start[0] == 0 and end[0] < 0)
        axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                connectionstyle=f"arc3,rad={0.55 if is_left else -0.55}",
                arrowstyle="-|>",
                mutation_scale=9,
                shrinkA=20,
                shrinkB=20,
                linewidth=0.5 + min(count, 60) / 25,
                color="#4472a8" if end[1] < start[1] else "#c00000",
                alpha=0.35,
            )
        )
    frame = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#333333"}
    for room, (x, y) in place.items():
        axes.text(x, y, room, ha="center", va="center", bbox=frame)
    axes.text(-1.75, 1, "lines of code", ha="right", va="center", color="#555555")
    for row, level in enumerate(rows):
        lines = " · ".join(f"{lines_of(files_of(room)):,}" for room in level)
        axes.text(-1.75, -row, lines, ha="right", va="center", color="#555555")
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", action="store_true", help="also draw docs/rooms.svg")
    arguments = parser.parse_args()
    imports = imports_between_rooms()
    print_tables(imports)
    if arguments.picture:
        draw(imports)


if __name__ == "__main__":
    main()
