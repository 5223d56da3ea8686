"""``fedproto signing-key`` as a person calls it."""

from __future__ import annotations

import stat
from pathlib import Path

from fedproto_app.node.site import site_file
from tests.cli.conftest import Fedproto


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
    (secret,) = (tmp_path / "state").rglob("secret")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_file_that_is_missing_costs_a_line(fedproto: Fedproto, tmp_path: Path) -> None:
    outcome = fedproto("signing-key", tmp_path / "none.toml")
    assert outcome.code == 2
    assert "none.toml" in outcome.err
    assert outcome.err.count("\n") == 1
