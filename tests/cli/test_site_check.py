"""``fedproto data check --site``: a site looks at its own file as a node would read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fedproto
from tests.node.test_sites import sequence_site, wide_csv


def write(folder: Path, data: str) -> Path:
    file = folder / "site.toml"
    file.write_text(f"[data]\n{data}\n")
    return file


def test_only_what_the_site_chose_is_shown(check: Fedproto, tmp_path: Path) -> None:
    wide_csv(tmp_path / "a.csv", "abc")
    data = "source = 'wide-csv'\npath = 'a.csv'\ntime-column = 'when'\nclients = ['c', 'a']"
    outcome = check("--site", write(tmp_path, data))
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.split("\n")[1:3]] == ["a", "c"]
    assert "2, of them 2 usable" in outcome.out


def test_a_sites_sequences_are_its_own(check: Fedproto, tmp_path: Path) -> None:
    sequence_site(tmp_path, "north", "abc")
    data = "source = 'sequence-npz'\npath = 'north.npz'\nclients = ['b']"
    outcome = check("--site", write(tmp_path, data))
    assert outcome.code == 0, outcome.err
    assert "given: clients as the source has them" in outcome.out
    assert "1, of them 1 usable" in outcome.out


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("source = 'wide-csv'\npath = '../a.csv'", [], "data.path = '../a.csv': means"),
        ("source = 'wide-csv'\npath = 'no.csv'", [], "no.csv: no such file or folder"),
        (
            "surce = 'wide-csv'",
            [],
            "data.surce: unknown setting; did you mean data.source? known in",
        ),
        ("path = 'a.csv'", [], "data-source is not set"),
        ("source = 'digits'", ["a.csv"], "path and --site: the site's file says what is read"),
        ("source = 'digits'", ["--scheme", "given"], "--scheme and --site"),
    ],
)
def test_what_the_node_would_refuse_is_told(
    check: Fedproto, tmp_path: Path, data: str, options: list[str], message: str
) -> None:
    outcome = check(*options, "--site", write(tmp_path, data))
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
