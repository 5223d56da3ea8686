"""Rules of the structure that no linter checks. import-linter checks the rooms, in `make check`."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from benchmarks.structure import learner_hooks, levels, strategy_methods

ROOT = Path(__file__).parents[1]
PACKAGE, COMPARED = ROOT / "fedproto_app", ROOT / "fedproto_compared"


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Return the modules of both packages, those of the app by their paths in it."""
    paths = sorted([*PACKAGE.rglob("*.py"), *COMPARED.rglob("*.py")])
    names = [str(path.relative_to(ROOT)).removeprefix("fedproto_app/") for path in paths]
    return [(name, ast.parse(path.read_text())) for name, path in zip(names, paths, strict=True)]


def compares_choice(node: ast.AST) -> bool:
    """Return whether the code compares `settings.task` or `settings.method` with a name."""
    if isinstance(node, ast.Match):
        return is_choice(node.subject)
    if not isinstance(node, ast.Compare):
        return False
    parts = [node.left, *node.comparators]
    names = [c for part in parts for c in ast.walk(part) if isinstance(c, ast.Constant)]
    return bool(names) and any(map(is_choice, parts))


def is_choice(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("task", "method")
        and ast.unparse(node.value).endswith(("settings", "self"))
    )


def has_record(tree: ast.Module) -> bool:
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return any(ast.unparse(node.targets[0]) == "METHOD" for node in assigned)


def test_only_a_methods_own_record_asks_which_method_or_task_is_chosen() -> None:
    asking = [
        name
        for name, tree in modules()
        if not has_record(tree) and any(map(compares_choice, ast.walk(tree)))
    ]
    assert asking == []


def test_flower_stands_in_few_modules_of_the_strategies() -> None:
    importing = {
        name
        for name, tree in modules()
        if name.startswith(("strategies/", "fedproto_compared/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "flwr"
        if node.module != "flwr.common.logger"
    }
    common = {"flower_strategy.py", "federation.py"}
    assert importing == {f"strategies/common/{name}" for name in common}


def test_no_module_is_called_as_the_tests_that_flowers_bundles_leave_out() -> None:
    names = {Path(name).name for name, _ in modules()}
    assert not [name for name in names if name.endswith("_test.py") or name.startswith("test_")]


def test_the_package_has_only_files_that_flowers_bundles_take() -> None:
    """A bundle leaves out HTML, for example, and a run from it would then write no report."""
    files = [*PACKAGE.rglob("*.*"), *COMPARED.rglob("*.*")]
    kinds = {path.suffix for path in files if "__pycache__" not in path.parts}
    assert kinds == {".py", ".toml"}


def test_an_author_of_a_method_reads_few_hooks() -> None:
    """What few methods need stands with these, not in everybody's base classes."""
    assert len(learner_hooks()) <= 14
    assert len(strategy_methods()) <= 25


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("fedproto_app", "fedproto_compared")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_no_text_names_a_higher_room() -> None:
    """Except that the table of methods finds each method by its file in ``strategies/``."""
    level_of = {room: number for number, level in enumerate(levels()) for room in level}
    upward = {
        f"{name}: {room}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for room in re.findall(r"\bfedproto_app\.(\w+)", node.value)
        if level_of.get(room, 99) < level_of.get(Path(name).parts[0].removesuffix(".py"), 0)
    }
    assert upward == {"core/methods.py: strategies"}
