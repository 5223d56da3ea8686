"""The page as text: its sentences, its escaping, and that it makes no network requests."""

from __future__ import annotations

import base64
import csv
import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from fedproto_app.core.methods import METHODS
from fedproto_app.report.page import REPORT
from fedproto_app.report.page.document import render, report_of, write_report
from fedproto_app.report.runs import read_run
from tests.report.made_runs import (
    add_divergence,
    alone,
    make_classification_run,
    make_run,
    round_record,
    shared,
)
from tests.report.made_sequences import make_sequence_run

HOSTILE = "</script><img src=x onerror=alert(1)>"
FORMULA = '=HYPERLINK("http://evil.example","x")'


class Page(HTMLParser):
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            self.inside[self._open[-1]] = data
        elif data.strip():
            self.words.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def elements_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*folders: Path) -> Page:
    return Page(render([read_run(folder) for folder in folders]))


def rename(run: Path, names: list[str]) -> None:
    """Give the run's clients other names, as the server would write them."""
    file = run / "clients.csv"
    with file.open(newline="") as lines:
        head, *rows = list(csv.reader(lines))
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(head)
        for row, name in zip(rows, names, strict=True):
            writer.writerow([name, row[1], name, *row[3:]])


def test_the_finding_comes_first(tmp_path: Path) -> None:
    """Ratios 0.5, 0.75 and 1.2, as in the test of the sentence."""
    page = page_of(shared(tmp_path / "a", (0.2, 0.6, 0.6)), alone(tmp_path / "b", (0.4, 0.8, 0.5)))
    pays = "Whether federated learning pays is open"
    assert page.words[0] == f"{pays}: 2 of 3 clients have a lower error"
    shown = page.words.index("Contents")
    assert any(word.startswith(f"{pays} for") for word in page.words[:shown])
    assert "What to do next" in page.words[:shown]
    assert {"+50.0%", "+25.0%", "−20.0%"} <= set(page.words[shown:])  # of the table of clients
    assert {"+50%", "+25%", "−20%"} <= set(page.words[:shown])  # of the bars
    assert {"gains", "does not gain"} <= {row.get("data-side") for row in page.elements_of("tr")}
    harmed = page_of(shared(tmp_path / "c", (2.0, 2.0)), alone(tmp_path / "d", (1.0, 1.0)))
    assert harmed.words[0].endswith(" is open: 0 of 2 clients have a lower error")


def test_a_page_of_each_task_and_of_all(tmp_path: Path) -> None:
    folders = {
        "series": make_run(tmp_path / "series"),
        "images": make_classification_run(tmp_path / "images"),
        "classes": make_sequence_run(tmp_path / "classes"),
        "numbers": make_sequence_run(tmp_path / "numbers", "sequence-regression"),
    }
    add_divergence(folders["series"], ["x", "y"], np.array([[0, 0.6], [0.6, 0]]))
    explained = {
        "series": ["MSE", "MASE", "MAE, RMSE", "validation"],
        "images": ["A_loc, A_glo, A_sel", "validation"],
        "classes": ["validation"],
        "numbers": ["MAE, RMSE", "validation"],
    }
    figures = ("MSE", "MASE", "MAE, RMSE", "A_loc, A_glo, A_sel", "validation")
    for name, folder in folders.items():
        page = page_of(folder)
        assert [figure for figure in figures if figure in page.words] == explained[name]
        assert len(page.elements_of("h1")) == 1
        assert page.elements_of("svg")
        words = " ".join(page.words)
        method = read_run(folder).summary["method"]
        assert METHODS.meaning(method) in words  # in the glossary
        assert "fedproto run" in words
        assert "None" not in words
        assert "nan" not in words.lower().split()
    together = page_of(*folders.values())
    assert len(together.elements_of("article")) == 4
    ids = [attributes["id"] for _, attributes in together.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_equal_pictures_of_several_methods_are_drawn_once(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, method=name, settings_digest=name)
        for name in ("kindred", "fuels", "other")
    ]
    for run, apart in zip(runs, (0.6, 0.6, 0.3), strict=True):
        add_divergence(run, ["x", "y"], np.array([[0, apart], [apart, 0]]))
    words = page_of(*runs).words
    assert sum(word.endswith(": 2 clients") for word in words) == 2
    assert re.search(
        r"with (kindred \(federated\) is the same as with fuels|"
        r"fuels is the same as with kindred \(federated\))\.",
        " ".join(words),
    )


def test_few_lines_of_many_methods(tmp_path: Path) -> None:
    """Errors by step: of eight rows of the table and no more."""
    runs = [make_run(tmp_path / f"{n}", method=f"m{n}", settings_digest=f"{n}") for n in range(10)]
    for run in runs:
        (run / "steps.csv").write_text("step,mse,mse_median\n1,0.1,0.1\n2,0.2,0.2\n")
    words = page_of(*runs).words
    about = [word for word in words if word.startswith("The median client's error by")]
    assert about == [
        "The median client's error by the number of steps ahead. Shown are the first 8 rows of the "
        "table of methods."
    ]


def test_a_method_with_one_round_has_no_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rounds=1, method="naive")
    (run / "rounds.jsonl").write_text(json.dumps(round_record(1)) + "\n")
    assert "There was only one round, so there is no learning curve." in page_of(run).words


def test_strangers_words_stay_words(tmp_path: Path) -> None:
    names = [HOSTILE, FORMULA]
    with_share, without = shared(tmp_path / "a", (0.2, 0.6)), alone(tmp_path / "b", (0.4, 0.8))
    for run in (with_share, without):
        rename(run, names)
    bad = {"node": HOSTILE, "client": FORMULA, "reason": HOSTILE}
    (with_share / "rounds.jsonl").write_text(json.dumps(round_record(1, refused=[bad])) + "\n")
    page = page_of(with_share, without)
    assert len(page.elements_of("script")) == 1
    assert not page.elements_of("img")
    assert not [name for _, names in page.elements for name in names if name.startswith("on")]
    assert page.words.count(HOSTILE) >= 3
    assert FORMULA in page.words
    assert HOSTILE in [row.get("data-group") for row in page.elements_of("tr")]


def test_it_asks_nothing_of_anybody(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a"))
    [policy] = [
        str(element["content"])
        for element in page.elements_of("meta")
        if element.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind in ("script", "style"):
        digest = base64.b64encode(sha256(page.inside[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    for _, attributes in page.elements:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
        assert "style" not in attributes  # the policy would refuse it
    assert "url(" not in page.inside["style"]
    assert not re.search(r"fetch|XMLHttp|import", page.inside["script"])


def test_who_does_not_see_it_is_told(tmp_path: Path) -> None:
    page = page_of(shared(tmp_path / "a", (0.2, 0.6)), alone(tmp_path / "b", (0.4, 0.8)))
    for svg in page.elements_of("svg"):
        assert svg.get("aria-hidden") == "true" or len(svg.get("aria-label") or "") > 20
    assert len(page.elements_of("table")) == len(page.elements_of("caption"))
    assert all(head.get("scope") in ("col", "row") for head in page.elements_of("th"))
    assert len(page.elements_of("html")) == 1
    assert page.elements_of("html")[0]["lang"] == "en"


def test_a_hundred_clients_take_less_than_two_megabytes(tmp_path: Path) -> None:
    """With six methods of 200 rounds, and a matrix of all clients."""
    draws = np.random.default_rng(0)
    folders = [alone(tmp_path / "solo", draws.uniform(0.5, 2, 100).tolist())]
    for number in range(5):
        folder = shared(
            tmp_path / f"m{number}", draws.uniform(0.4, 2, 100).tolist(), method=f"m{number}"
        )
        add_divergence(folder, [f"g{n % 7}" for n in range(100)], draws.random((100, 100)))
        folders.append(folder)
    for folder in folders:
        lines = [json.dumps(round_record(number)) + "\n" for number in range(1, 201)]
        (folder / "rounds.jsonl").write_text("".join(lines))
    write_report([read_run(folder) for folder in folders], tmp_path / "all.html")
    assert (tmp_path / "all.html").stat().st_size < 2e6


def test_very_many_clients_are_thinned_and_it_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a", np.linspace(0.1, 1, 2500).tolist()))
    assert "2000 of 2500 clients, evenly sampled." in page.words


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", dataset="\ud800")
    assert report_of(run) == run / REPORT
    assert b"?" in (run / REPORT).read_bytes()


def test_equal_labels_are_told_apart(tmp_path: Path) -> None:
    """Runs of two versions have two digests of the same settings."""
    page = page_of(
        shared(tmp_path / "a", (0.2, 0.6)),
        shared(tmp_path / "b", (0.3, 0.6), settings_digest="other"),
    )
    assert {"fuels", "fuels (2)"} <= set(page.words)


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "rounds.jsonl").unlink()
    assert page_of(run).elements_of("h1")
