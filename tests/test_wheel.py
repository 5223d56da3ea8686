"""The wheel: its contents suffice to train in an environment without the checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "fedproto_app", ROOT / "fedproto_compared"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
_RUN = "from fedproto_app.cli import main; print(main.__file__); main.main()"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as pip does, from a copy without the files of earlier builds."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for package in PACKAGES:
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-W", "ignore", "-c", _BUILD, str(folder)]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_both_packages_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    paths = chain.from_iterable(package.rglob("*") for package in PACKAGES)
    files = (path for path in paths if path.is_file() and path.suffix != ".pyc")
    assert names == {str(path.relative_to(ROOT)) for path in files}


def test_it_trains_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    empty.mkdir()
    tiny = {"rounds": 1, "data.synthetic.clients": 2, "data.synthetic.days": 10}
    tiny |= {"model.representation-dim": 8, "output.name": "first", "output.pictures": "false"}
    changes = [f"--set={key}={value}" for key, value in tiny.items()]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "run", "--workers=1", *changes],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "fuels on synthetic-traffic: 2 clients" in done.stdout
    assert done.stdout.startswith(f"{site / 'fedproto_app' / 'cli' / 'main.py'}\n")
    assert [path.name for path in empty.iterdir()] == ["runs"]
    assert (empty / "runs" / "first" / "clients.csv").exists()


def plain(name: str) -> str:
    """Return the normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(*table: str) -> set[str]:
    """Return the distributions that a list of pyproject.toml requires."""
    listed: Any = PROJECT
    for key in table:
        listed = listed[key]
    return {plain(re.split(r"[\[<>= ]", requirement)[0]) for requirement in listed}


def test_all_that_the_package_imports_is_asked_for() -> None:
    imported = set()
    for path in chain.from_iterable(package.rglob("*.py") for package in PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    # _typeshed has types of the standard library, for type checkers only.
    known = {*sys.stdlib_module_names, "_typeshed", *(package.name for package in PACKAGES)}
    third_party = imported - known
    required, extras = names_of("dependencies"), set[str]()
    for extra in set(PROJECT["optional-dependencies"]) - {"dev", "docs"}:
        extras |= names_of("optional-dependencies", extra)
    distributions = packages_distributions()
    # A library of an extra need not be installed.
    distribution_names = {plain(distributions.get(name, [name])[0]) for name in third_party}
    assert distribution_names <= required | extras | {"ray"}  # of flwr[simulation]
    assert required - distribution_names == set()


def test_the_tested_versions_are_among_those_that_may_work() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    versions = {plain(name): version for name, version in tested.items()}
    extras = dict(PROJECT["optional-dependencies"])
    del extras["lightgbm"]  # of one row of a table; no test has it
    for text in [*PROJECT["dependencies"], *chain.from_iterable(extras.values())]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:  # others of its own extras
            continue
        assert requirement.specifier.contains(versions[plain(requirement.name)]), text
    for text in PROJECT["dependencies"]:
        bounds = {specifier.operator for specifier in Requirement(text).specifier}
        assert bounds == {">=", "<"}, text


def test_the_image_holds_the_tested_versions_by_hash() -> None:
    """`make hashes` writes the list; torch, whose build depends on the machine, is not in it."""
    blocks = (ROOT / "docker" / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    listed = [block for block in blocks if "==" in block]
    assert all(" --hash=sha256:" in block for block in listed)
    pins = {plain(block.split("==")[0]): block.split()[0].split("==")[1] for block in listed}
    tested = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]
    )
    versions = {plain(name): version for name, version in tested.items()}
    assert pins == {name: versions[name] for name in pins}
    assert names_of("dependencies") | names_of("optional-dependencies", "privacy") <= {
        *pins,
        "torch",
    }
