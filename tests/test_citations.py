"""Citations in code and docs exist in the papers, and the docs' tables name existing code.

A citation reads ``A, eq. 3``, ``Fed-REACT's eqs. 5 and 6``, ``P, appendix D.2`` or ``GLDP,
Algorithm 1, line 4``: the paper and its edition first, by the names in ``papers.toml``. No other
form passes.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAPERS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/papers.toml").read_text())
WITH_TEXT = [name for name, paper in PAPERS.items() if "text" in paper]
TABLES = ["docs/closed-forms.md", "docs/fuels.md", "docs/gldp.md", "docs/fed-react.md"]
TABLES += ["docs/compared.md"]

NUMBERS = r"\d+(?:(?:, | and | to )\d+(?! of))*"
NAME = "|".join(map(re.escape, sorted(PAPERS, key=len, reverse=True)))
CITED = re.compile(
    rf"(?<![\w.])(?P<paper>{NAME})(?:,|'s) (?:"
    rf"eqs?\. (?P<equations>{NUMBERS})"
    rf"|Algorithm (?P<algorithm>\d)(?:, lines? (?P<lines>{NUMBERS}))?"
    r"|(?:section|appendix) (?P<section>[A-E\d](?:\.\d)*)"
    r"|Table (?P<table>\d)|Fig\. (?P<figure>\d))"
)
# What looks like a citation and so must be one. Hsieh et al. cite no paper of ours.
LOOSE = re.compile(
    r"(?i:\beqs?\.? ?\(?\d|\bequations? \(?\d)"
    r"|\bAlgorithms? \d|\b(?:section|appendix) [A-E\d](?=\W)"
)
UNLISTED = ["(Hsieh et al. 2020, section 5)"]


def files() -> list[Path]:
    """Return every text that people read, except this test."""
    texts = [ROOT / "README.md", ROOT / "pyproject.toml"]
    for folder in ("fedproto_app", "fedproto_compared", "docs", "tests", "benchmarks", "configs"):
        texts += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".md", ".toml"}]
    return sorted(set(texts) - {Path(__file__), ROOT / "tests/papers.toml"})


def text_of(path: Path) -> str:
    """Return the file's text on one line, as a citation may be broken over two lines."""
    text = " ".join(re.sub(r"\n\s*(#:? )?", "\n", path.read_text()).split())
    for citation in UNLISTED:
        text = text.replace(citation, "")
    return text


def numbers(listed: str) -> Iterator[int]:
    """``3, 5 and 7 to 9`` → 3, 5, 7, 8, 9."""
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
        yield from range(int(first), int(last or first) + 1)


def fault(match: re.Match[str]) -> str | None:
    """Return why the citation cannot be right, None if it can."""
    paper, cited = PAPERS[match["paper"]], match.groupdict()
    equations = {int(number) for number in paper["equations"]}
    unknown = [n for n in numbers(cited["equations"] or "") if n not in equations]
    lines = paper.get("algorithms", {}).get(cited["algorithm"], 0)
    wrong = (
        (bool(unknown), f"no equation {unknown}"),
        (bool(cited["algorithm"]) and not lines, "no such algorithm"),
        (any(n > lines for n in numbers(cited["lines"] or "")), f"it has {lines} lines"),
        (bool(cited["section"]) and cited["section"] not in paper["sections"], "no such section"),
        (bool(cited["table"]) and int(cited["table"]) not in paper["tables"], "no such table"),
        (bool(cited["figure"]) and int(cited["figure"]) > paper["figures"], "no such figure"),
    )
    return next((f"{match[0]!r}: {why}" for is_wrong, why in wrong if is_wrong), None)


@pytest.mark.parametrize(
    ("citation", "why"),
    [
        ("A, eqs. 9 and 10", "no equation [10]"),
        ("P, eqs. 9 and 10", None),
        ("Fed-REACT, section 3.2", "no such section"),
        ("A, Algorithm 1, lines 9 and 22", "it has 21 lines"),
        ("GLDP's Algorithm 2", "no such algorithm"),
        ("Fed-REACT, Table 6", "no such table"),
        ("P, Fig. 9", None),
        ("Li et al. 2020, eq. 3", "no equation [3]"),
    ],
)
def test_a_wrong_number_is_found(citation: str, why: str | None) -> None:
    match = CITED.fullmatch(citation)
    assert match is not None
    assert fault(match) == (why and f"{citation!r}: {why}")


def test_every_citation_names_its_paper_and_an_existing_place() -> None:
    wrong, cited = [], 0
    for path in files():
        text = text_of(path)
        matches = list(CITED.finditer(text))
        cited += len(matches)
        wrong += [f"{path}: {why}" for match in matches if (why := fault(match))]
        uncited = CITED.sub("", text)
        wrong += [
            f"{path}: without its paper: {uncited[max(loose.start() - 60, 0) : loose.end() + 20]}"
            for loose in LOOSE.finditer(uncited)
        ]
    assert wrong == []
    assert cited > 100


@cache
def papers_text(name: str) -> str:
    """The paper's text, from FEDPROTO_PAPERS or ../shared/papers; skip the test without it."""
    folder = Path(os.environ.get("FEDPROTO_PAPERS", ROOT.parent / "shared/papers"))
    path = folder / PAPERS[name]["text"]
    if not path.is_file():
        pytest.skip(f"no text of the paper at {path}; FEDPROTO_PAPERS names the folder")
    return path.read_text().replace("\N{CYRILLIC CAPITAL LETTER ES}", "C")  # of appendix C


TAG = re.compile(
    r"(?<!Eq\. )(?<!equation )\((\d{1,2})\)(?=[ \t]*(?:\$\$|\\|&|\d{3}|\n))|\\tag\{(\d+)\}"
)


@pytest.mark.parametrize("name", WITH_TEXT)
def test_the_table_of_equations_agrees_with_the_paper(name: str) -> None:
    """The last equation may stand for more: the preprint's proofs have 29 more equations."""
    text, table = papers_text(name), PAPERS[name]["equations"]
    places: dict[int, list[int]] = {}
    for match in TAG.finditer(text):
        places.setdefault(int(match[1] or match[2]), []).append(match.start())
    assert sorted(map(int, table)) == list(range(1, len(table) + 1))
    assert set(places) >= set(map(int, table))
    assert name == "P" or len(places) == len(table)
    for number, (subject, mark) in table.items():
        near = [text[max(place - 500, 0) : place] for place in places[int(number)]]
        assert any(mark in before for before in near), (number, subject)


@pytest.mark.parametrize("name", WITH_TEXT)
def test_the_sections_algorithms_and_tables_are_the_papers(name: str) -> None:
    text, paper = papers_text(name), PAPERS[name]
    for section in paper["sections"]:
        # Extracted from a PDF: the number of a printed line, or no space, may come before a title.
        heading = rf"(?m)(?:^|\d ){re.escape(section)}\.?\s+\*{{0,2}}[A-Z]| {section} \d{{3}} "
        assert re.search(heading, text), section
    for algorithm in paper["algorithms"]:
        assert f"Algorithm {algorithm}" in text
    for table in paper["tables"]:
        assert re.search(rf"Tables?.{{0,8}}\b{table}\b", text), table


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the rows of the docs' tables: the citation, the file, the names in it."""
    for page in TABLES:
        for line in (ROOT / page).read_text().splitlines():
            if not line.startswith("| "):
                continue
            paper, *code = line.split(" | ")
            listed = re.findall(r"`([\w/]+\.py)`((?:,? (?:and )?`[A-Za-z_.]+`)+)", " ".join(code))
            for file, names in listed:
                yield paper, file, re.findall(r"`([A-Za-z_.]+)`", names)


def source_of(tree: ast.Module, text: str, name: str) -> str:
    """Return the text of a class, function or ``Class.method``; empty without it."""
    body: list[ast.stmt] = tree.body
    node: ast.stmt | None = None
    for part in name.split("."):
        definitions = [
            statement
            for statement in body
            if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == part
        ]
        if not definitions:
            return ""
        node = definitions[0]
        body = node.body
    return ast.get_source_segment(text, node) or "" if node else ""


@pytest.mark.parametrize("page", TABLES)
def test_every_page_has_a_table_from_the_paper_to_the_code(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "| paper | code |" in text


@pytest.mark.parametrize(("cited", "file", "names"), list(rows()))
def test_the_code_that_a_table_names_is_there_and_cites_the_same(
    cited: str, file: str, names: list[str]
) -> None:
    folder = ROOT if file.startswith("fedproto_compared/") else ROOT / "fedproto_app"
    text = (folder / file).read_text()
    tree = ast.parse(text)
    sources = [source_of(tree, text, name) for name in names]
    missing = [name for name, source in zip(names, sources, strict=True) if not source]
    assert not missing, f"{file} has no {missing}"

    def equations(text: str) -> set[tuple[str, int]]:
        matches = CITED.finditer(" ".join(text.split()))
        return {(m["paper"], n) for m in matches for n in numbers(m["equations"] or "")}

    # A class says at the top of its file what it builds.
    cites = equations(" ".join([ast.get_docstring(tree) or "", *sources]))
    assert equations(cited) <= cites
