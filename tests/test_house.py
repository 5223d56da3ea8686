"""The rules of the house (docs/design.md): who may import whom, and what stands in one place only.

A rule that is broken for a reason has its exception here, with the reason. An exception that is not
needed any more fails too: delete it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "fedproto_app"

CHECKS = ["tasks.*.check", "tasks.findings"]  # what `fedproto data check` prints
# From the top down: a room imports itself and what is below it. The first fitting pattern counts.
ROOMS = {
    "entry points": [
        "api",
        "server_app",
        "client_app",
        "cli.*",
        "sweep.*",
        "engine.*",
        "gate.*",
        "invariants",
        *CHECKS,
    ],
    "the loop": ["server.rounds"],
    "reports": ["report.*", "export.*", "tasks.*.report", "tasks.*.charts", "tasks.*.examples"],
    "operations": ["ops.*"],
    "node": ["node.*"],
    "methods": ["halves", "privacy_plan"],
    "strategies": ["strategies.*"],
    "server": ["server.*"],
    "learners": ["learners.*"],
    "tasks": ["tasks.*"],
    "models": ["models.*"],
    "data": ["data.*"],
    "maths": ["maths.*"],
    "wire": ["wire"],
    "masked sums": ["secure.*"],
    "ground": [
        *("core", "core.*", "settings.*", "messages", "metrics", "errors", "events"),
        "node_register",
        "randomness",
        "whole_file",
        "run_lock",
        "users_code",
        "extras",
        "__init__",
    ],
}
TABLES = [
    "methods",
    "tasks.table",
]  # of the ground: they name classes by strings
# Neighbours, of which the upper one does not know the lower one either.
STRANGERS = {
    ("node", "strategies"),
    ("node", "server"),
    ("server", "learners"),
    ("models", "data"),
    ("data", "maths"),
    ("maths", "wire"),
}
UPWARD: dict[tuple[str, str], str] = {
    ("__init__", "api"): "asked for by name alone",
    ("strategies.common.strategy", "halves"): "the learner declares what is sent",
    **{
        ("tasks.table", of_types): "types of what its strings name"
        for of_types in ("data.shape", "data.shard", "report.task_report", "tasks.task")
    },
    ("tasks.table", "data.source_checks"): "a user's own function tells what it holds when called",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name without the package's, parsed."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)
        found[name] = ast.parse(path.read_text())
    return found


def room(module: str) -> str:
    if module in TABLES:
        return "ground"
    for name, patterns in ROOMS.items():
        if any(fnmatch(module, one) or fnmatch(module + ".", one) for one in patterns):
            return name
    raise AssertionError(f"{module} is in no room: enter it in ROOMS")


@cache
def imports(module: str, *, types: bool = True) -> set[str]:
    """What a module imports anywhere in it: our own by their short names, others by their first.

    types: also what only a type checker sees.
    """
    tree = modules()[module]
    hidden: set[ast.AST] = set()
    if not types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                hidden |= {inner for one in node.body for inner in ast.walk(one)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.module, f"{module}: an import by dots"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found.add(whole if _short(whole) in modules() else node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {_short(name) for name in found}


def _short(name: str) -> str:
    first, _, rest = name.partition(".")
    return (rest or "__init__") if first == PACKAGE else "@" + first


def edges() -> Iterator[tuple[str, str]]:
    for module in modules():
        for target in sorted(imports(module)):
            if not target.startswith("@"):
                yield module, target


def test_no_room_imports_one_above_it_or_a_stranger() -> None:
    order = list(ROOMS)
    wrong = {
        (importer, imported)
        for importer, imported in edges()
        if order.index(room(imported)) < order.index(room(importer))
        or (room(importer), room(imported)) in STRANGERS
    }
    assert wrong == set(UPWARD)


def reaches_flower(module: str) -> list[str]:
    """How a module comes to import Flower while it runs, by way of which others; [] if never."""
    paths, seen = [[module]], {module}
    while paths:
        path = paths.pop()
        for target in sorted(imports(path[-1], types=False)):
            if target == "@flwr":
                return path
            if not target.startswith("@") and target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return []


@pytest.mark.parametrize("name", ["learners", "tasks", "models", "maths", "data"])
def test_what_a_method_is_made_of_knows_no_flower(name: str) -> None:
    inside = [module for module in modules() if room(module) == name]
    assert inside
    assert [path for module in [*inside, "messages"] if (path := reaches_flower(module))] == []


def test_maths_and_models_get_numbers() -> None:
    knowing = {
        module
        for module in modules()
        if room(module) in ("maths", "models") and "settings" in imports(module)
    }
    assert knowing == set()


def is_choice(node: ast.AST) -> bool:
    """`settings.task`, `self.settings.method`; within the settings `self.task`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("task", "method")
        and ast.unparse(node.value).endswith(("settings", "self"))
    )


def has_record(tree: ast.Module) -> bool:
    """Whether the module has a method's record, which says with what the method goes."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return any(ast.unparse(node.targets[0]) == "METHOD" for node in assigned)


def test_only_records_and_tables_tell_methods_and_tasks_apart() -> None:
    found = Counter(
        module
        for module, tree in modules().items()
        if module not in TABLES and not has_record(tree)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Compare) and any(map(is_choice, [node.left, *node.comparators])))
        or (isinstance(node, ast.Match) and is_choice(node.subject))
    )
    assert found == Counter()


PUBLIC = {"_exit", "_asdict", "_replace"}  # of os, and of named tuples


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def own_names(tree: ast.Module) -> set[str]:
    """What the module's own classes and functions are called and have."""
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return names | {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_nothing_private_is_used_by_another_module() -> None:
    """A subclass may use what its base keeps for itself and for it."""
    wrong = []
    for module, tree in modules().items():
        own = own_names(tree)
        for node in ast.walk(tree):
            used = [node.attr] if isinstance(node, ast.Attribute) and node.attr not in own else []
            used += [name.name for name in getattr(node, "names", []) if hasattr(name, "name")]
            if any(map(is_private, used)):
                wrong.append(f"{module}: {ast.unparse(node)}")
    assert wrong == []


def literals(node: ast.AST) -> list[str]:
    """The names that a dictionary, or a subscript, spells out."""
    keys = node.keys if isinstance(node, ast.Dict) else [node]
    return [key.value for key in keys if isinstance(key, ast.Constant) and key.value]


def spelled_out(tree: ast.Module) -> Iterator[str]:
    """Names of arrays and options in orders and replies that are strings where they are used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_record(node.value):
            yield from literals(node.slice)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("arrays", "options"):
            yield from literals(node.value)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and _is_record(node.func.value):
                yield from (name for argument in node.args[:1] for name in literals(argument))
            if ast.unparse(node.func) == "Contribution":
                yield from (name for argument in node.args[:1] for name in literals(argument))
            for word in node.keywords:
                if word.arg in ("arrays", "options", "mean", "per_client", "per_class"):
                    yield from literals(word.value)


def _is_record(node: ast.AST) -> bool:
    fields = ("arrays", "options", "others", "mean", "per_client", "per_class")
    return isinstance(node, ast.Attribute) and node.attr in fields


def test_the_name_of_an_exchanged_array_is_declared_once() -> None:
    """As a constant of the learner, which the strategy imports."""
    wrong = {
        (module, name)
        for module, tree in modules().items()
        if room(module) in ("strategies", "learners")
        for name in spelled_out(tree)
    }
    assert wrong == set()


def test_no_module_is_one_that_flowers_bundles_leave_out() -> None:
    """A bundle holds no file that looks like a test; a module of such a name would be missing."""
    names = {path.name for path in (ROOT / PACKAGE).rglob("*.py")}
    assert not [name for name in names if name.endswith("_test.py") or name.startswith("test_")]
