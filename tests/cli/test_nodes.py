"""``fedproto nodes`` with a real SuperLink: listing nodes, and changing keys and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.local_federation import LocalFederation
from fedproto_app.core.errors import SettingsError
from fedproto_app.ops.keys import make_keys
from fedproto_app.ops.nodes import read_key
from fedproto_app.server.node_register import Binding, NodeRegister, fingerprint, time_text
from tests.cli.conftest import Fedproto


def test_the_register_is_changed_without_a_superlink(fedproto: Fedproto, tmp_path: Path) -> None:
    """As FEDPROTO_OUTPUT_ROOT says, or ``--runs``."""
    runs = ("--runs", tmp_path)
    register = NodeRegister(tmp_path / "nodes.json")
    with register.changing() as names:
        names.bound["harbour"] = Binding("SHA256:a", 1, False, "then", "then", "first", 4)
    unknown = fedproto("nodes", "release", "pier", *runs)
    assert unknown.code == 2
    assert unknown.err == "error: 'pier' is bound to no key here; bound names: harbour\n"

    assert fedproto("nodes", "ban", "harbour", *runs).code == 0
    assert fedproto("nodes", "ban", "SHA256:b", *runs).code == 0
    assert register.read().banned == {"harbour": ["SHA256:a"], "SHA256:b": ["SHA256:b"]}
    assert register.read().ban_of("pier", "SHA256:a") == "harbour"
    assert register.read().ban_of("pier", "SHA256:c") is None

    assert fedproto("nodes", "release", "harbour", *runs).out == (
        "harbour: released from the key SHA256:a\n"
    )
    assert fedproto("nodes", "unban", "harbour", *runs).code == 0
    assert fedproto("nodes", "unban", "harbour", *runs).err == (
        "error: 'harbour' is not banned; banned: SHA256:b\n"
    )
    assert register.read().bound == {}


def test_what_is_no_public_key_is_told(tmp_path: Path) -> None:
    for name, content in (("text.pub", "harbour"), ("ed.pub", "ssh-ed25519 AAAA")):
        (tmp_path / name).write_text(content)
        with pytest.raises(SettingsError, match=r"must be a public key such as fedproto keys"):
            read_key(tmp_path / name)
    with pytest.raises(SettingsError, match="No such file"):
        read_key(tmp_path / "none.pub")


@pytest.mark.integration
def test_the_life_of_a_key(
    tmp_path: Path, fedproto: Fedproto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered, used, rotated, revoked, and not to be registered again."""
    runs = ("--runs", tmp_path / "runs")
    with LocalFederation(tmp_path / "federation") as federation:
        monkeypatch.setenv("FLWR_HOME", str(federation.user_home))
        node = federation.add_node("harbour", {"node-name": "harbour"})
        make_keys(tmp_path / "others", [], ["harbour", "pier"])
        new, pier = (tmp_path / "others" / "nodes" / f"{name}.pub" for name in ("harbour", "pier"))
        old = fingerprint((federation.keys / "nodes" / "harbour.pub").read_bytes())

        assert fedproto("nodes", "register", pier, "local").out == "pier: registered\n"
        assert fedproto("nodes", "register", pier, "local").out == "pier: is registered\n"
        limited = fedproto("nodes", "register", pier, "local", "--valid-days", 365, *runs)
        assert limited.out.startswith(f"pier: is registered, until {time_text(days=365)[:10]}")
        renamed = fedproto("nodes", "register", pier, "local", "--name", "quay")
        assert (renamed.code, renamed.out) == (2, "")
        assert "already registered under the name 'pier', not 'quay'" in renamed.err

        typo = fedproto("run", "--superlink", "local", "--set", "nodes.names=harbor,pier")
        assert typo.code == 2
        message = "nodes.names: no node is called 'harbor'; registered: harbour, pier"
        assert message in typo.err

        number = node.wait_until_joined()
        with NodeRegister(tmp_path / "runs" / "nodes.json").changing() as names:
            names.bound["harbour"] = Binding(old, number, True, "then", "then", "first", 4)
        listed = fedproto("nodes", "list", "local", *runs)
        harbour, quay = (row.split() for row in listed.out.splitlines() if "SHA256" in row)
        assert harbour == ["harbour", "online", "now", "4", "first", old, str(number)]
        assert quay[:4] == ["pier", "registered", "never", time_text(days=365)[:10]]

        assert "banned, with these keys: " + old in fedproto("nodes", "ban", "harbour", *runs).out
        assert " banned " in fedproto("nodes", "list", "local", *runs).out
        assert fedproto("nodes", "unban", "harbour", *runs).code == 0

        overlap = fedproto("nodes", "rotate", "harbour", new, "local", "--overlap-days", 7, *runs)
        assert f"; accepted until {time_text(days=7)[:10]}" in overlap.out
        assert fedproto("nodes", "list", "local", *runs).out.count("harbour") == 2
        rotated = fedproto("nodes", "rotate", "harbour", new, "local", *runs)
        assert rotated.out.startswith(f"harbour: has the new key {fingerprint(new.read_bytes())}")
        repeated = fedproto("nodes", "rotate", "harbour", new, "local", *runs)
        assert (repeated.code, "harbour already has this key" in repeated.err) == (2, True)
        old_file = federation.keys / "nodes" / "harbour.pub"
        revoked = fedproto("nodes", "register", old_file, "local")
        assert (revoked.code, revoked.out) == (2, "")
        assert "was revoked" in revoked.err

        assert fedproto("nodes", "revoke", "pier", "local").code == 0
        remaining = fedproto("nodes", "list", "local", *runs).out
        assert "pier" not in remaining
        assert fedproto("nodes", "list", "local", "--all", *runs).out.count("revoked") == 2
        unknown = fedproto("nodes", "revoke", "pier", "local")
        assert "'pier': no node has this name; registered: harbour" in unknown.err
        missing = fedproto("nodes", "list", "nowhere")
        assert (missing.code, missing.err.count("\n")) == (1, 1)
