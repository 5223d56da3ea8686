"""The command line as a whole: help, version, and mistakes told in one line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fedproto_app
from fedproto_app import __version__
from fedproto_app.cli.commands import COMMANDS, imported_command
from fedproto_app.core.endings import program
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.settings import settings_from
from tests.cli.conftest import Fedproto


@pytest.mark.parametrize(
    ("command", "taught"),
    [
        (["run"], "fedproto run --set method=fedavg"),
        (["run"], "fedproto run configs/fed-react-synthetic.toml"),
        (["compare"], "fedproto compare runs"),
        (["pictures"], "fedproto pictures runs/my-run"),
        (["data", "check"], "fedproto data check"),
        (["forecast"], "fedproto forecast runs/my-run --data sites.csv --client north"),
        (["keys"], "fedproto keys /etc/fedproto/keys --host fl.example.org"),
        (["signing-key"], "fedproto signing-key site.toml"),
        (["sweep"], "[CONFIG.toml]"),  # brackets that Rich could take for a style
        (["export"], "fedproto-app["),
    ],
)
def test_every_command_teaches_by_example(
    fedproto: Fedproto, command: list[str], taught: str
) -> None:
    outcome = fedproto(*command, "--help")
    assert outcome.code == 0
    assert taught in outcome.out


def test_the_version_is_told(fedproto: Fedproto) -> None:
    outcome = fedproto("--version")
    assert (outcome.code, outcome.out) == (0, f"fedproto-app {__version__}\n")


def test_a_mistake_costs_one_line_and_exit_code_2(fedproto: Fedproto) -> None:
    outcome = fedproto("pictures", "nowhere")
    assert outcome.code == 2
    assert outcome.err.startswith("error: nowhere: ")
    assert outcome.err.count("\n") == 1
    unknown = fedproto("comprae")
    assert (unknown.code, "Did you mean 'compare'?" in unknown.err) == (2, True)


def test_alone_it_shows_what_to_try(fedproto: Fedproto) -> None:
    outcome = fedproto()
    assert outcome.code == 0
    for command in ("fedproto demo", "fedproto data check my.csv", "fedproto compare runs"):
        assert f"  {command} " in outcome.out


def test_a_shell_completes_commands_and_options(
    fedproto: Fedproto, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--install-completion" in fedproto("--help").out
    monkeypatch.setenv("_FEDPROTO_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "fedproto da")
    assert '"data"' in fedproto().out
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "fedproto data check --cov")
    assert "--covariates" in fedproto().out


def test_a_notebook_completes_the_interface() -> None:
    assert set(fedproto_app.__all__) < set(dir(fedproto_app))


def test_data_in_place_of_settings_are_told_from_them(fedproto: Fedproto, tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_text("time,north\n0,1.5\n")
    (tmp_path / "loads.toml").write_text("[data]\nsource = wide-csv\n")
    assert "fedproto data check" in fedproto("run", tmp_path / "sites.csv").err
    assert "texts need double quotes" in fedproto("run", tmp_path / "loads.toml").err


def test_too_little_memory_ends_in_one_line(
    fedproto: Fedproto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fedproto_app.data.recognition.reading_of", read)
    outcome = fedproto("data", "check", "a.csv")
    assert outcome.code == 2
    assert outcome.err == "error: there is not enough memory for this on this machine\n"


def examples(taught: click.Command) -> Iterator[list[str]]:
    """Return the words of the examples in the help texts of a command and those below it."""
    for below in getattr(taught, "commands", {}).values():
        yield from examples(below)
    text = (taught.help or "").replace("\n      ", " ")  # a line further right goes on
    for line in text.splitlines():
        if line.strip().startswith("fedproto "):
            yield shlex.split(line)[1:]


def test_the_examples_of_the_help_texts_are_accepted() -> None:
    """Their options exist, and so do the settings behind --set."""
    taught = [words for name in COMMANDS for words in examples(imported_command(name))]
    for name, *words in taught:
        called = imported_command(name)
        while commands := getattr(called, "commands", {}):
            name, *words = words
            called = commands[name]
        values = called.make_context(called.name, words).params
        changes = changed_settings(None, values.get("changes") or ())
        if ":" not in (method := values.get("method") or ":"):
            changes["method"] = method
        settings_from(changes)
    assert len(taught) > 40


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_repeats_the_first_sentences_of_their_help_texts(name: str) -> None:
    paragraph = (imported_command(name).help or "").partition("\n\n")[0]
    assert COMMANDS[name][1] == " ".join(paragraph.split())


def test_a_program_that_is_not_on_the_path_is_called_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `make demo`, which installs into .venv."""
    place = tmp_path / "my tools" / "fedproto"
    place.parent.mkdir()
    place.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(place)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == f"'{place}'"
    monkeypatch.setenv("PATH", str(place.parent))
    assert program() == "fedproto"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "fedproto"
