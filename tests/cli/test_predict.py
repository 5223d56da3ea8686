"""``fedproto predict`` as a person calls it: new files, and only the node's state."""

from __future__ import annotations

import csv
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedproto_app
from fedproto_app.core.errors import DataError
from fedproto_app.tasks.table import small_run
from tests.cli.conftest import Fedproto
from tests.helpers.local_grid import LocalGrid, run_on, small_settings

SITES, COLOURS = ("north", "south"), ("blue", "green", "red")


def draw(
    file: Path, colour: str, rng: np.random.Generator, sides: tuple[int, int] = (8, 8)
) -> None:
    pixels = rng.integers(0, 60, (*sides, 3)).astype(np.uint8)
    pixels[..., {"red": 0, "green": 1, "blue": 2}[colour]] += 100
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def trained(folder: Path, task: str, source: str, **changes: object) -> fedproto_app.Run:
    settings = {**small_run(task), "method": "analytic", "data.source": source, **changes}
    settings |= {"output.dir": str(folder / "runs"), "output.pictures": False}
    return fedproto_app.run(settings, nodes=2, workers=1, progress=False)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> fedproto_app.Run:
    """Make a run on images whose colour is the class. The images are gone after it."""
    folder, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for site in SITES:
        for colour in COLOURS:
            for number in range(10):
                draw(folder / "data" / site / colour / f"{number}.png", colour, rng)
    path = {"data.path": str(folder / "data"), "data.partition.scheme": "given"}
    run = trained(folder, "classification", "class-folders", **path, **{"analytic.features": 20})
    shutil.rmtree(folder / "data")
    return run


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory) -> fedproto_app.Run:
    """Make a run on CSV files in which the column that rises is the class."""
    folder, rng = tmp_path_factory.mktemp("moves"), np.random.default_rng(0)
    for site in SITES:
        for rising in ("a", "b"):
            for number in range(12):
                file = folder / "data" / site / rising / f"{number}.csv"
                file.parent.mkdir(parents=True, exist_ok=True)
                steps(rising, rng).to_csv(file, index=False)
    path = {"data.path": str(folder / "data"), "data.clusters.scheme": "given"}
    scaled = {"data.sequences.scaling": "client"}
    run = trained(folder, "sequence-classification", "sequence-folder", **path, **scaled)
    shutil.rmtree(folder / "data")
    return run


def steps(rising: str, rng: np.random.Generator) -> pd.DataFrame:
    table = pd.DataFrame({column: rng.normal(5, 0.1, 20) for column in "ab"})
    return table.assign(**{rising: table[rising] + np.linspace(0, 3, 20)})


def test_images_of_a_folder_are_classified(
    fedproto: Fedproto, scans: fedproto_app.Run, tmp_path: Path
) -> None:
    rng, new = np.random.default_rng(1), tmp_path / "new"
    for place in ("a.png", "deep/er/b.PNG", "c.bmp"):
        draw(new / place, "green", rng)
    (new / "notes.txt").write_text("no image")
    outcome = fedproto("predict", scans.path, "--client", "south", "--data", new)
    assert outcome.code == 0, outcome.err
    rows = rows_of(outcome.out)
    assert [(row["sample"], row["class"]) for row in rows] == [
        (name, "green") for name in ("a.png", "c.bmp", "deep/er/b.PNG")
    ]
    assert outcome.err.split() == ["class", "samples", "green", "3"]
    pixels = np.stack([np.asarray(Image.open(new / row["sample"])) for row in rows])
    expected = scans.predict("south", pixels.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(
        [[float(row[name]) for name in COLOURS] for row in rows], expected[list(COLOURS)], atol=1e-6
    )
    np.savez(tmp_path / "new.npz", x=pixels)
    out = tmp_path / "out.csv"
    states = next(path for path in (scans.path / "state").iterdir() if "south" in names(path))
    outcome = fedproto("predict", "--state", states, "--data", tmp_path / "new.npz", "--out", out)
    assert outcome.code == 0, outcome.err
    assert f"written: {out}" in outcome.err.replace("\n", "")
    of_archive = rows_of(out.read_text())
    assert [row.pop("sample") for row in of_archive] == ["0", "1", "2"]
    assert of_archive == [{k: v for k, v in row.items() if k != "sample"} for row in rows]
    single = fedproto("predict", "--state", states, "--data", new / "c.bmp")
    assert rows_of(single.out) == [rows[1]]


def names(state: Path) -> list[str]:
    from fedproto_app.serving import read_state

    return read_state(state).store.kept_clients()


def test_columns_of_new_files_are_found_by_their_names(
    fedproto: Fedproto, moves: fedproto_app.Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    table = steps("b", rng)
    table.to_csv(tmp_path / "new.csv", index=False)
    command = ("predict", moves.path, "--client", "north", "--data")
    outcome = fedproto(*command, tmp_path / "new.csv")
    assert outcome.code == 0, outcome.err
    (row,) = rows_of(outcome.out)
    assert row["class"] == "b"
    table.assign(more=1.0)[["more", "b", "a"]].to_csv(tmp_path / "new.csv", index=False)
    assert fedproto(*command, tmp_path / "new.csv").out == outcome.out
    frames = [table, table[["b", "a"]]]
    assert moves.predict("north", frames).nunique().tolist() == [1, 1]
    with pytest.raises(DataError, match="sequence 0 has no column 'b'"):
        moves.predict("north", [table[["a"]]])
    table[["a"]].assign(c=1.0).to_csv(tmp_path / "new.csv", index=False)
    refused = fedproto(*command, tmp_path / "new.csv")
    assert refused.code == 2
    assert "new.csv has no column 'b'" in " ".join(refused.err.split())
    x = table.to_numpy()[None]
    for dimensions, code in ((["a", "b"], 0), (["b", "a"], 2)):
        np.savez(tmp_path / "new.npz", x=x, dimensions=dimensions)
        named = fedproto(*command, tmp_path / "new.npz")
        assert named.code == code, named.err
    assert "values are b, a, but in training they were a, b" in " ".join(named.err.split())
    np.savez(tmp_path / "new.npz", points=x[0], offsets=[0, 20])
    assert rows_of(fedproto(*command, tmp_path / "new.npz").out)[0]["class"] == "b"


def recorded(folder: Path, *, load: bool) -> tuple[fedproto_app.Run, pd.DataFrame]:
    """Make a run on recordings, whose charge is twice the speed. Return it and a recording.

    load: whether there is a further column.
    """
    rng = np.random.default_rng(0)
    (folder / "cars").mkdir()
    for site in SITES:
        speed = rng.normal(size=200)
        table = pd.DataFrame({"speed": speed, **({"load": rng.normal(size=200)} if load else {})})
        table["charge"] = speed * 2
        table.to_csv(folder / "cars" / f"{site}.csv", index=False)
    settings = {
        "data.path": str(folder / "cars"),
        "data.clusters.scheme": "given",
        "data.sequences": {"target": "charge", "window": 10, "stride": 4, "scaling": "none"},
        "method": "fedavg",
    }
    return trained(folder, "sequence-regression", "recordings", **settings), table


def test_a_single_column_is_found_by_its_name(fedproto: Fedproto, tmp_path: Path) -> None:
    run, table = recorded(tmp_path, load=False)
    new, command = tmp_path / "new.csv", ("predict", run.path, "--client", "north", "--data")
    outputs = set()
    for columns in (["speed"], ["speed", "charge"], ["charge", "speed"]):
        table.tail(12)[columns].to_csv(new, index=False)
        outcome = fedproto(*command, new)
        assert outcome.code == 0, outcome.err
        outputs.add(outcome.out)
    assert len(outputs) == 1
    table[["charge"]].to_csv(new, index=False)
    assert "has no column 'speed'" in " ".join(fedproto(*command, new).err.split())


def test_values_far_beyond_those_of_training_are_refused(
    fedproto: Fedproto, moves: fedproto_app.Run, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("a,b\n5,6\n3.4e38,6\n")
    outcome = fedproto("predict", moves.path, "--client", "north", "--data", tmp_path / "x.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "sequence 0: 3.4e+38 is too large beside the values in training" in " ".join(
        outcome.err.split()
    )


def test_outputs_replace_files_and_nothing_else(
    fedproto: Fedproto, scans: fedproto_app.Run, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    draw(new / "a.png", "red", np.random.default_rng(1))
    os.rename(new / "a.png", os.fsencode(new) + b"/sc\xe9n.png")
    command = ("predict", scans.path, "--client", "north", "--data", new, "--out")
    pipe, target, link = (tmp_path / name for name in ("pipe", "target.csv", "link.csv"))
    os.mkfifo(pipe)
    refused = fedproto(*command, pipe)
    assert refused.code == 2
    assert "is a device or a pipe; expected a file" in " ".join(refused.err.split())
    assert pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target)
    outcome = fedproto(*command, link)
    assert outcome.code == 0, outcome.err
    assert link.is_symlink()
    assert b"\nsc\xe9n.png,red," in target.read_bytes()


def test_pipes_other_formats_and_unfinished_runs_get_a_line(
    fedproto: Fedproto, scans: fedproto_app.Run, tmp_path: Path
) -> None:
    draw(tmp_path / "mixed" / "a.png", "red", np.random.default_rng(1))
    draw(tmp_path / "mixed" / "b.tif", "red", np.random.default_rng(1))
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "pipe.png"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "begun" / "state").mkdir(parents=True)
    (tmp_path / "begun" / "settings.toml").touch()
    state = next((scans.path / "state").iterdir())
    good = tmp_path / "mixed" / "a.png"
    cases = [
        (scans.path, tmp_path / "mixed", "b.tif: only images in .jpg, .jpeg, .png, .bmp are read"),
        (scans.path, tmp_path / "mixed" / "b.tif", "b.tif: only images in .jpg"),
        (scans.path, tmp_path / "folder.npz", "no image (.jpg, .jpeg, .png, .bmp) in it"),
        (scans.path, tmp_path / "pipe.npz", "neither a file nor a folder"),
        (scans.path, tmp_path / "pipe.png", "neither a file nor a folder"),
        (tmp_path / "none", good, "none: no such folder"),
        (tmp_path / "begun", good, "no client has a model yet; has the run ended?"),
        (state, good, "the state of a node; name it with --state"),
    ]
    for run, data, message in cases:
        outcome = fedproto("predict", run, "--client", "north", "--data", data)
        assert (outcome.code, outcome.out) == (2, ""), message
        assert message in " ".join(outcome.err.split()), outcome.err


def test_a_deployed_state_reads_new_files_as_its_site_reads_its_own(
    fedproto: Fedproto, tmp_path: Path
) -> None:
    """The run names no source. The sites' recordings have other columns, cut by semicolons."""
    rng, nodes = np.random.default_rng(0), []
    for site in SITES:
        speed = rng.normal(size=120)
        table = pd.DataFrame({"t": range(120), "speed": speed, "charge": 2 * speed, "more": 1})
        folder = tmp_path / site
        (folder / "cars").mkdir(parents=True)
        table.to_csv(folder / "cars" / f"{site}.csv", index=False, sep=";")
        (folder / "site.toml").write_text(
            f'name = "{site}"\nstate-dir = "state"\n[data]\nsource = "recordings"\npath = "cars"\n'
            'columns = ["speed"]\ntime-column = "t"\ndelimiter = "semicolon"\n'
            '[data.sequences]\ntarget = "charge"\n'
        )
        nodes.append({"site": str(folder / "site.toml")})
    sequences = {"target": "seconds", "window": 10, "stride": 4, "scaling": "client"}
    changes = {"method": "fedavg", "data.sequences": sequences, "rounds": 2}
    settings = small_settings(tmp_path, "sequence-regression", **changes)
    run_on(LocalGrid(settings, nodes), settings)
    table.tail(14).assign(t="unknown").to_csv(tmp_path / "new.csv", index=False, sep=";")
    (state,) = (tmp_path / "south" / "state").glob("*/south")
    outcome = fedproto("predict", "--state", state, "--data", tmp_path / "new.csv")
    assert outcome.code == 0, outcome.err
    assert [row["sample"] for row in rows_of(outcome.out)] == ["new.csv, row 10", "new.csv, row 14"]


def test_what_does_not_fit_is_refused(
    fedproto: Fedproto, scans: fedproto_app.Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    draw(tmp_path / "large" / "a.png", "red", rng, (9, 8))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    draw(tmp_path / "good.png", "red", rng)
    client = ("--client", "north")
    cases = [
        ((*client, "--data", tmp_path / "large"), "a.png has 8 × 9 pixels, but a train image has"),
        ((*client, "--data", tmp_path / "damaged"), "a.png: not a JPEG, PNG or BMP image (1 corr"),
        ((*client, "--data", tmp_path / "empty"), "no image (.jpg, .jpeg, .png, .bmp) in it"),
        ((*client, "--data", tmp_path / "y.npz"), "no array x; it has y"),
        ((*client, "--data", tmp_path / "none"), "none: no such file or folder"),
        (("--data", tmp_path / "good.png"), "--client; there are models of north, south"),
        (("--client", "nort", "--data", tmp_path / "good.png"), "did you mean 'north'?"),
        (
            (*client, "--data", tmp_path / "good.png", "--out", tmp_path / "good.png"),
            "is part of the data",
        ),
    ]
    for arguments, message in cases:
        outcome = fedproto("predict", scans.path, *arguments)
        assert (outcome.code, outcome.out) == (2, ""), arguments
        assert message in " ".join(outcome.err.split()), outcome.err
    assert "name either the folder" in fedproto("predict", *cases[0][0]).err


def test_recordings_are_cut_into_windows_that_end_with_the_last_row(
    fedproto: Fedproto, tmp_path: Path
) -> None:
    run, table = recorded(tmp_path, load=True)
    new = table.tail(19)
    new[["load", "speed"]].to_csv(tmp_path / "new.csv", index=False)
    command = ("predict", run.path, "--client", "north", "--data", tmp_path / "new.csv")
    outcome = fedproto(*command)
    assert outcome.code == 0, outcome.err
    rows = rows_of(outcome.out)
    assert [row["sample"] for row in rows] == [f"new.csv, row {end}" for end in (11, 15, 19)]
    windows = [new[["speed", "load"]].iloc[end - 10 : end].to_numpy() for end in (11, 15, 19)]
    expected = run.predict("north", windows)["y_hat"]
    np.testing.assert_allclose([float(row["y_hat"]) for row in rows], expected, rtol=1e-6)
    table.tail(9).to_csv(tmp_path / "new.csv", index=False)
    refused = fedproto(*command)
    message = "new.csv has 9 steps, fewer than data.sequences.window = 10"
    assert message in " ".join(refused.err.split())
