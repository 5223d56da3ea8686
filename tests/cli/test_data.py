"""``fedproto data check``: its options, its mistakes, and the line that it ends with."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.settings import Settings, settings_from
from tests.cli.conftest import Fedproto
from tests.cli.test_sequence_check import archive, recordings
from tests.node.test_sites import sequence_site, wide_csv


def offered(out: str) -> str:
    return out.rstrip().split("\n")[-1]


def offered_settings(out: str) -> Settings:
    """The settings of the run that the last line offers."""
    words = shlex.split(offered(out).removeprefix("train on it: fedproto run "))
    return settings_from(changed_settings(None, [word for word in words if word != "--set"]))


DRAWS = np.random.default_rng(0)
IMAGES = {
    f"{array}_{part}": value
    for part, count in (("train", 3000), ("test", 500))
    for array, value in (
        ("x", DRAWS.integers(0, 255, (count, 12, 12), dtype=np.uint8)),
        ("y", np.arange(count) % 5),
    )
}
CLIENTS = "--set=data.partition.clients=4"
MEASURED = {"x": DRAWS.normal(size=(200, 30, 3)), "y": DRAWS.normal(size=200)}


@pytest.mark.parametrize(
    ("arrays", "options", "method", "keep"),
    [
        (IMAGES, [CLIENTS], "analytic", "last"),
        (IMAGES, [CLIENTS, "--set=data.partition.stages=1"], "analytic", "best-validation"),
        (MEASURED, ["--set=data.clusters.scheme=given"], "fedavg", "best-validation"),
    ],
    ids=["images in stages", "images", "numbers to tell"],
)
def test_a_run_takes_the_offered_line(
    check: Fedproto,
    tmp_path: Path,
    arrays: dict[str, np.ndarray],
    options: list[str],
    method: str,
    keep: str,
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    outcome = check(tmp_path / "data.npz", *options)
    assert outcome.code == 0, outcome.err
    settings = offered_settings(outcome.out)
    assert (settings.method, settings.keep) == (method, keep)


def test_a_path_that_looks_like_a_number_stays_a_path(
    check: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "2024").mkdir()
    for site in ("north", "south"):
        (tmp_path / "2024" / f"{site}.csv").write_text("\n".join(of_a_period(24, 40)))
    assert offered_settings(check("2024").out).data.path == "2024"


def of_a_period(period: int, days: int) -> list[str]:
    steps = np.arange(period * days)
    values = 10 + np.sin(2 * np.pi * steps / period) + 0.1 * DRAWS.normal(size=steps.shape)
    return ["time,north", *(f"{step},{value:.3f}" for step, value in enumerate(values))]


def test_the_offered_line_takes_the_period_that_was_found(check: Fedproto, tmp_path: Path) -> None:
    (tmp_path / "quarters.csv").write_text("\n".join(of_a_period(96, 20)))
    outcome = check(tmp_path / "quarters.csv")
    assert "steps at period 96 (by autocorrelation, of 1 of 1 series)" in outcome.out
    assert offered(outcome.out).endswith("/quarters.csv --set data.period=96")
    as_told = check(tmp_path / "quarters.csv", "--period", 48)
    assert offered(as_told.out).endswith("/quarters.csv --set data.period=48")
    (tmp_path / "short.csv").write_text("\n".join(of_a_period(96, 4)))  # too few days of 96 steps
    assert "data.period" not in offered(check(tmp_path / "short.csv").out)


def test_a_line_is_offered_for_a_file_and_for_an_embedded_source(
    check: Fedproto, tmp_path: Path
) -> None:
    config = tmp_path / "my run.toml"
    config.write_text('method = "solo"\n[data.synthetic]\nclients = 5\n')
    outcome = check("--config", config, "--set", "data.horizon=3")
    assert offered(outcome.out) == f"train on it: fedproto run '{config}' --set data.horizon=3"
    digits = check("--source", "digits", "--set=data.partition.stages=1")
    assert offered(digits.out) == (
        "train on it: fedproto run --set task=classification --set method=analytic "
        "--set data.source=digits --set data.partition.stages=1"
    )


def test_a_slip_leaves_out_no_client(check: Fedproto, tmp_path: Path) -> None:
    lines = of_a_period(24, 20)
    rows = [f"{line},{line.partition(',')[2]}" for line in lines[1:]]
    rows[6] = rows[6].rpartition(",")[0] + ",3.4.1"
    (tmp_path / "sites.csv").write_text("\n".join(["time,north,south", *rows]))
    outcome = check(tmp_path / "sites.csv")
    assert outcome.code == 2
    assert "column 'south', line 8: '3.4.1' is not a number" in outcome.err


def test_arrays_that_may_be_images_are_told(check: Fedproto, tmp_path: Path) -> None:
    images = {name: a / 255 if name[0] == "x" else a for name, a in IMAGES.items()}
    np.savez(tmp_path / "data.npz", **images)
    outcome = check(tmp_path / "data.npz")
    assert "x_train is read as 3000 sequences of 12 steps with 12 values each; if" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--period", "0"], "data.period = 0: input should be greater than or equal to 1"),
        (["--source", "tables"], "data.source = 'tables': unknown source; known are wide-csv, "),
        (
            ["--source", "wide-cvs"],
            "data.source = 'wide-cvs': unknown source; did you mean 'wide-c",
        ),
        (["--set", "data.perod=3"], "data.perod: unknown setting; did you mean data.period? "),
        (["--set", "data.source=3"], "data.source = 3: input should be a valid string"),
        (["--set", "data.period"], "--set data.period: expected KEY=VALUE"),
        (["--config", "missing.toml"], "missing.toml: No such file"),
        (["--set", "task=forecasts"], "task = 'forecasts': unknown; did you mean 'forecasting'? "),
        (
            ["--source", "digits", "--set", "task=forecasting"],
            "data.source = 'digits' holds images; set task = 'classification', or data.source to",
        ),
        (["--picture", "x.png"], "--picture is for images and labelled sequences, but source syn"),
        (["--source", "digits", "--period", "24"], "--period is for series, but source digits"),
        (["--source", "digits", "--picture", "x.pdf"], "--picture x.pdf: expected a .png file"),
        (["--source", "digits", "--picture", "no/x.png"], "--picture no/x.png: no folder no"),
        (["--source", "digits", "--set=data.partition.clients=0"], "data.partition.clients = 0: "),
        (
            ["--source", "digits", "--set=data.partition.scheme=fair"],
            "data.partition.scheme = 'fair': ",
        ),
        (["--source", "cifar"], "data.path is empty: source cifar reads a path"),
        (["missing.zip"], "missing.zip: no such file"),
        (["x.npz", "--period", "24"], "--period is for series, but source sequence-npz holds lab"),
        (
            ["x.npz", "--set=data.clusters.scheme=long-tail"],
            "data.clusters.scheme = 'long-tail': input should be",
        ),
        (
            ["x.npz", "--set=data.clusters.clusters=11"],
            "data.clusters.clusters = 11: more than data.clusters.cl",
        ),
        (
            ["x.npz", "--set=data.clusters.beta=0"],
            "data.clusters.beta = 0: input should be greater than 0",
        ),
        (["x.npz", "--picture", "x.pdf"], "--picture x.pdf: expected a .png file"),
        (["y.npz", "--picture", "x.png"], "--picture x.png: the targets are real numbers, not"),
        (
            ["y.npz", "--set", "task=sequence-classification", "--set", "method=solo"],
            "task = 'sequence-classification': the targets of data.source = 'sequence-npz' are ",
        ),
        (["--source", "recordings"], "data.path is empty: source recordings reads a path"),
        (["missing.ts"], "missing.ts: no such file"),
        (
            [".", "--source", "recordings", "--set=data.sequences.target=speed"],
            "data.sequences.target = 'speed': expected a column of .: u, charge",
        ),
    ],
)
def test_mistakes_are_one_line(
    check: Fedproto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    archive(tmp_path / "x.npz", np.arange(30) % 2)
    archive(tmp_path / "y.npz", np.arange(30) / 2)
    monkeypatch.chdir(recordings(tmp_path))
    outcome = check(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1


def site_file(folder: Path, data: str) -> Path:
    file = folder / "site.toml"
    file.write_text(f"[data]\n{data}\n")
    return file


def test_only_what_the_site_chose_is_shown(check: Fedproto, tmp_path: Path) -> None:
    wide_csv(tmp_path / "a.csv", "abc")
    data = "source = 'wide-csv'\npath = 'a.csv'\ntime-column = 'when'\nclients = ['c', 'a']"
    outcome = check("--site", site_file(tmp_path, data))
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.split("\n")[1:3]] == ["a", "c"]
    assert "2, of them 2 usable" in outcome.out


@pytest.mark.parametrize(
    ("run", "code", "message"),
    [
        ("local-epochs=2", 0, "site.toml: allows this run"),
        ("local-epochs=9", 2, "local-epochs = 9: this site allows 0 … 5 (limits.epochs)"),
        ("method=gldp", 2, "method = 'gldp'"),
        ("model.module=evil:Net", 2, "model.module = 'evil:Net': this site does not run this code"),
    ],
)
def test_a_site_can_try_a_run_without_a_server(
    check: Fedproto, tmp_path: Path, run: str, code: int, message: str
) -> None:
    wide_csv(tmp_path / "a.csv", "abc")
    data = "source = 'wide-csv'\npath = 'a.csv'\ntime-column = 'when'\nclients = ['a']\n"
    file = site_file(tmp_path, f"{data}[limits]\nepochs = 5\nmethods = ['fuels']")
    outcome = check("--site", file, "--set", run)
    assert outcome.code == code, outcome.err
    assert message in " ".join((outcome.out + outcome.err).split())


def test_a_sites_sequences_are_its_own(check: Fedproto, tmp_path: Path) -> None:
    sequence_site(tmp_path, "north", "abc")
    data = "source = 'sequence-npz'\npath = 'north.npz'\nclients = ['b']"
    outcome = check("--site", site_file(tmp_path, data))
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
            "data.surce: unknown setting; did you mean data.source",
        ),
        ("path = 'a.csv'", [], "neither data-source nor"),
        ("source = 'digits'", ["a.csv"], "path: not with --site, as that file says what is read"),
    ],
)
def test_what_the_node_would_refuse_is_told(
    check: Fedproto, tmp_path: Path, data: str, options: list[str], message: str
) -> None:
    outcome = check(*options, "--site", site_file(tmp_path, data))
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
