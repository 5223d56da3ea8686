"""``fedproto keys`` as a person calls it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedproto_app.node.site import site_file
from tests.cli.conftest import Fedproto


def test_it_says_what_was_made_and_where_it_goes(fedproto: Fedproto, tmp_path: Path) -> None:
    folder = tmp_path / "my keys"
    outcome = fedproto("keys", folder, "--host", "fl.example.org", "--node", "harbour")
    assert outcome.code == 0
    title, *rows = outcome.out.splitlines()
    assert title == f"made in {folder}:"
    places = dict(row.split(maxsplit=1) for row in rows if "→" in row)
    assert set(places) == {
        *("ca.crt", "ca.key", "server.pem", "server.key", "nodes/harbour", "nodes/harbour.pub")
    }
    assert places["ca.crt"].startswith("public")
    assert "no machine" in places["ca.key"]
    assert places["nodes/harbour"] == "private  → node harbour alone"
    public = folder / "nodes" / "harbour.pub"
    assert f"fedproto nodes register '{public}' SUPERLINK\n" in outcome.out
    assert "PRIVATE KEY" not in outcome.out


def test_a_site_makes_its_own_key(fedproto: Fedproto, tmp_path: Path) -> None:
    outcome = fedproto("keys", tmp_path / "keys", "--node", "harbour", "--node", "pier")
    assert outcome.code == 0
    assert outcome.out.count("nodes register") == 2
    files = {file.name for file in (tmp_path / "keys").rglob("*") if file.is_file()}
    assert files == {"harbour", "harbour.pub", "pier", "pier.pub"}


def test_what_exists_costs_one_line_and_exit_code_2(fedproto: Fedproto, tmp_path: Path) -> None:
    arguments = ("keys", tmp_path / "keys", "--host", "127.0.0.1")
    assert fedproto(*arguments).code == 0
    outcome = fedproto(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"error: {tmp_path / 'keys' / 'server.pem'} already exists")
    assert outcome.err.count("\n") == 1


def test_it_says_when_certificates_end(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fedproto("keys", tmp_path / "keys", "--host", "localhost").code == 0
    outcome = fedproto("keys", tmp_path / "keys", "--check")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["ca.crt", "server.pem"]
    monkeypatch.setattr("fedproto_app.ops.keys.SERVER_YEARS", 20 / 365)
    assert fedproto("keys", tmp_path / "short", "--host", "localhost").code == 0
    outcome = fedproto("keys", tmp_path / "short", "--check")
    assert outcome.code == 1
    assert "server.pem ends in 19 days" in outcome.out


def test_it_shows_one_key_that_another_site_may_write_down(
    fedproto: Fedproto, tmp_path: Path
) -> None:
    site, other_site = tmp_path / "site.toml", tmp_path / "other.toml"
    site.write_text('name = "harbour"\nstate-dir = "state"\n')
    outcome = fedproto("signing-key", site)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("ssh-ed25519 ")
    assert fedproto("signing-key", site).out == outcome.out
    other_site.write_text(f'[masked-sums]\nleast = 3\nknown = ["{outcome.out.strip()}"]\n')
    assert site_file(other_site).masked_sums.known == (outcome.out.strip(),)
    missing = fedproto("signing-key", tmp_path / "none.toml")
    assert (missing.code, "none.toml" in missing.err, missing.err.count("\n")) == (2, True, 1)
    (secret,) = (tmp_path / "state").rglob("secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
