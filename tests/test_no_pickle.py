"""No pickle on any path: the package's code must not load or write a pickle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path for name in ("fedproto_app", "fedproto_compared") for path in (ROOT / name).rglob("*.py")
]
MODULES = {
    "pickle", "_pickle", "cPickle", "pickletools", "joblib", "shelve", "marshal", "dill",
    "cloudpickle", "yaml",
}  # fmt: skip
NAMES = {"read_pickle", "to_pickle", "read_hdf", "HDFStore", "Unpickler", "Pickler"}
OF_TORCH = {"load", "save"}  # torch.load, torch.save, torch.jit.load, torch.package …
OF_NUMPY = {"load", "save", "savez", "savez_compressed"}


def faults(tree: ast.Module) -> Iterator[str]:
    """Yield the calls in a module that could unpickle or pickle, with their lines."""
    aliases = dict(_aliases(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if set(name.split(".")) & (MODULES | NAMES) or _is_torchs(name):
                    yield f"line {node.lineno}: imports {name}"
        elif isinstance(node, ast.Attribute):
            name = _full_name(node, aliases)
            if node.attr in NAMES or _is_torchs(name):
                yield f"line {node.lineno}: {name}"
        elif isinstance(node, ast.Constant) and node.value in MODULES:
            yield f"line {node.lineno}: the name {node.value!r}, as import_module takes it"
        elif isinstance(node, ast.Call):
            name = _full_name(node.func, aliases)
            if name.startswith("numpy.") and name.rpartition(".")[2] in OF_NUMPY:
                value = {word.arg: word.value for word in node.keywords}.get("allow_pickle")
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield f"line {node.lineno}: {name} without allow_pickle=False"
            for word in node.keywords:
                allowed = isinstance(word.value, ast.Constant) and word.value.value is False
                if word.arg == "allow_pickle" and not allowed:
                    yield f"line {node.lineno}: allow_pickle that is not False"


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [above + alias.name for alias in node.names]


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the full names of a module's aliases: np → numpy."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias, name in zip(node.names, _imported(node), strict=True):
                yield alias.asname or alias.name, name


def _full_name(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _is_torchs(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and parts[-1] in OF_TORCH


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_pickles(path: Path) -> None:
    assert list(faults(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from multiprocessing import dill",
        "import joblib",
        "def f():\n    import shelve",
        "import marshal, json",
        "from yaml import load",
        "import cloudpickle.cloudpickle",
        "import_module('pickle')",
        "__import__('dill')",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.save({}, 'x')",
        "from torch import load",
        "from torch import save as write",
        "import torch\ntorch.jit.load('x')",
        "import torch\nread = torch.load",
        "import numpy as np\nnp.load('x')",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
        "from numpy import load\nload('x')",
        "from numpy import load as read\nread('x')",
        "import numpy as np\nnp.save('x', a)",
        "import numpy as np\nnp.load('x', allow_pickle=asked)",
        "anything('x', allow_pickle=True)",
        "import pandas as pd\npd.read_pickle('x')",
        "from pandas import read_hdf",
        "frame.to_pickle('x')",
    ],
)
def test_the_walk_finds(code: str) -> None:
    assert list(faults(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import json\njson.load(file)",
        "from safetensors.torch import load_file\nload_file('x')",
        "pool.load(positions)",
        "'holds pickled Python objects'",
    ],
)
def test_the_walk_lets_pass(code: str) -> None:
    assert not list(faults(ast.parse(code)))
