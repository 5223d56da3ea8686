"""A node's own settings: two sources, early and readable errors, no data outside the root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.node.site import SHORT_KEYS, Site, read_site, site_file
from fedproto_app.settings import Choice, DataSettings, SequenceSettings

FILE = """
name = "harbour"
state-dir = "state"
device = "cpu"
threads = 2
[data]
source = "wide-csv"
path = "traffic.csv"
clients = ["cell-1", "cell-2"]
time-column = "when"
corrupt-images = "skip"
"""


def write(folder: Path, text: str = FILE) -> Path:
    file = folder / "site.toml"
    file.write_text(text)
    return file


def path_read(config: dict[str, Any]) -> str:
    return read_site(config).reads(DataSettings()).path


def test_a_file_says_all_that_a_site_decides(tmp_path: Path) -> None:
    site = read_site({"site": str(write(tmp_path))})
    assert (site.label, site.device, site.threads) == ("harbour", "cpu", 2)
    assert site.state_dir == str(tmp_path / "state")
    run = DataSettings(period=48, path="/of/the/run")
    data = site.reads(run)
    assert (data.source, data.path) == ("wide-csv", str(tmp_path / "traffic.csv"))
    assert data.choice == Choice(("cell-1", "cell-2"), (), ("when",))
    assert data.corrupt_images == "skip"
    assert (data.partition.scheme, data.clusters.scheme) == ("given", "given")
    assert data.period == 48  # what must be equal for all stays the run's
    assert site_file(tmp_path / "site.toml") == site


def test_a_site_names_the_columns_of_its_own_recordings(tmp_path: Path) -> None:
    table = "source = 'recordings'\ncolumns = ['v', 'i']\ntime-column = 't'\nsequences.target = 'c'"
    data = site_file(write(tmp_path, f"[data]\n{table}")).reads(DataSettings())
    assert data.choice == Choice((), ("v", "i"), ("t",))
    assert data.sequences.target == "c"


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("columns = ['a']", "wide-csv"),
        ("client-column = 'a'", "wide-csv"),
        ("header = false", "npz"),
        ("decimal = 'comma'", "wide-parquet"),
        ("time-column = 'a'", "npz"),
        ("sequences.target = 'a'", "csv-folder"),
    ],
)
def test_a_key_that_the_source_does_not_read_is_refused(
    tmp_path: Path, line: str, source: str
) -> None:
    def site(name: str) -> Site:
        return site_file(write(tmp_path, f"[data]\nsource = '{name}'\n{line}"))

    with pytest.raises(SettingsError, match=rf"data\.{line.split()[0]} = .*, not for '{source}'"):
        site(source).reads(DataSettings())
    site("mine:load").reads(DataSettings())  # who reads as he likes


LENDING = """
[data]
source = "long-csv"
path = "traffic.csv"
known = "temperature,weather=rain|sun,price"
covariates = "weather.csv"
holidays = "AT"
"""


def test_a_run_gets_the_columns_that_a_site_lends(tmp_path: Path) -> None:
    site = site_file(write(tmp_path, LENDING))
    run = DataSettings(known="weather,temperature", covariates="/of/the/run", holidays="DE-BY")
    data = site.reads(run)
    assert data.known == "weather=rain|sun,temperature"
    assert data.covariates == str(tmp_path / "weather.csv")
    assert data.holidays == "AT"
    assert site.reads(DataSettings(known="weather=rain|sun|fog")).known == "weather=rain|sun|fog"
    without = site.reads(DataSettings())
    assert (without.known, without.covariates, without.holidays) == ("", "", "")
    assert not without.has_known


@pytest.mark.parametrize(
    ("table", "run", "message"),
    [
        (
            LENDING,
            {"known": "wind"},
            "'wind': this site does not lend column 'wind'; .*temperature",
        ),
        (
            "[data]\nsource = 'npz'",
            {"known": "wind"},
            "column 'wind'; data.known of its file lends n",
        ),
        (
            LENDING,
            {"covariates": "w.csv"},
            "'w.csv': a deployed node reads only the table that its",
        ),
        (
            LENDING.replace('"weather.csv"', '"../w.csv"'),
            {"known": "price"},
            "data.covariates = '../w.csv': means .*, outside data.root",
        ),
    ],
)
def test_what_a_site_does_not_lend_is_refused(
    tmp_path: Path, table: str, run: dict[str, str], message: str
) -> None:
    site = site_file(write(tmp_path, table))
    with pytest.raises(SettingsError, match=message):
        site.reads(DataSettings.model_validate(run))


def test_a_site_names_its_pretrained_encoder_and_a_run_only_asks_for_it(tmp_path: Path) -> None:
    images = '[data]\nsource = "class-folders"\npath = "scans"\n'
    run = DataSettings(pretrained_encoder="/tmp/of-the-run.onnx")
    with pytest.raises(SettingsError, match=r"'/tmp/of-the-run.onnx': this site has none"):
        site_file(write(tmp_path, images)).reads(run)
    named = images + 'pretrained-encoder = "resnet18.onnx"\n'
    data = site_file(write(tmp_path, named)).reads(run)
    assert data.pretrained_encoder == str(tmp_path / "resnet18.onnx")
    assert site_file(write(tmp_path, named)).reads(DataSettings()).pretrained_encoder == ""
    outside = named.replace("resnet18", "../resnet18")
    with pytest.raises(SettingsError, match=r"outside data\.root"):
        site_file(write(tmp_path, outside)).reads(run)


def test_what_a_site_leaves_out_is_the_runs() -> None:
    run = DataSettings(corrupt_images="skip", sequences=SequenceSettings(target="load"))
    data = read_site({"data-source": "recordings"}).reads(run)
    assert (data.corrupt_images, data.sequences.target) == ("skip", "load")
    assert data.choice == Choice()


def test_short_keys_go_before_the_file(tmp_path: Path) -> None:
    config = {"site": str(write(tmp_path)), "node-name": "quay", "state-dir": "/elsewhere"}
    site = read_site({**config, "partition-id": 1, "num-partitions": 3})
    assert (site.label, site.state_dir) == ("quay", "/elsewhere")
    assert (site.partition_id, site.num_partitions, site.threads) == (1, 3, 2)
    assert site.is_dealt
    assert site.reads(DataSettings()).partition.scheme == "long-tail"  # the run deals


def test_short_keys_alone_are_enough() -> None:
    config = {"data-source": "wide-csv", "data-path": "/srv/a.csv", "node-name": 7}
    site = read_site({**config, "state-dir": "state", "device": "auto", "threads": 1})
    assert (site.label, site.state_dir) == ("7", "state")
    assert site.reads(DataSettings()).path == "/srv/a.csv"
    assert read_site({"partition-id": 0, "num-partitions": 1}).label == "0"
    assert read_site({}) == Site()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nmae = 'x'", ["nmae: unknown", "name", "state-dir"]),
        ("[data]\nsurce = 'x'", ["data.surce: unknown", "columns", "time-column"]),
        ("[data]\nperiod = 24", ["data.period: unknown"]),
        ("threads = 0", ["threads = 0", "greater than or equal to 1"]),
        ("threads = '2'", ["threads = '2'", "integer"]),
        ("device = 'gpu'", ["device = 'gpu'", "cuda"]),
        ("name = '../x'", ["name = '../x'", "pattern"]),
        ("data = 3", ["data = 3", "table"]),
        ("[data]\nclients = []", ["data.clients = []", "names nothing"]),
        ("[data]\nclients = [[]]", ["data.clients = [[]]", "a list of texts"]),
        ("[data]\nclients = ['a', '']", ["data.clients", "a name is empty"]),
        ("[data]\nheader = 'no'", ["data.header = 'no'", "the number of the line"]),
        ("[data]\nclients = ['a', 'a']", ["data.clients", "'a' is named twice"]),
        ("[data]\ncorrupt-images = 'keep'", ["data.corrupt-images = 'keep'", "'skip'"]),
        ("name = x", ["not a TOML file", "line 1"]),
    ],
)
def test_faults_of_a_file_name_it_and_the_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        read_site({"site": str(file)})
    for part in (str(file), *parts):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"site": 3}, "node config: site = 3: must be the path"),
        ({"site": "/nowhere/site.toml"}, "site = '/nowhere/site.toml': cannot be read: No such"),
        ({"threads": 0}, "node config: threads = 0: input should be greater"),
        ({"data-source": 5}, "node config: data-source = 5: input should be a valid string"),
        ({"data-rot": "/data"}, "node config: data-rot: unknown key; known here: site, node-name"),
        ({"partition-id": 2, "num-partitions": 2}, "partition-id = 2 must lie in 0 … num-part"),
        ({"partition-id": -1}, "node config: partition-id = -1: input should be greater"),
    ],
)
def test_faults_of_short_keys_are_told_by_their_own_names(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as fault:
        read_site(config)
    assert message in str(fault.value)


@pytest.mark.parametrize("config", [{"node-name": "a"}, {"partition-id": 0}])
def test_a_site_without_a_source_reads_nothing_that_the_run_names(config: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="neither data-source nor data"):
        read_site(config).reads(DataSettings(source="wide-csv", path="/etc/passwd"))


def test_a_simulation_may_add_keys_of_its_own() -> None:
    assert read_site({"partition-id": 0, "new-in-flower": 1}, deployed=False).label == "0"


def test_every_short_key_is_one_of_the_files() -> None:
    for key, (*above, last) in SHORT_KEYS.items():
        section: Any = Site
        for name in above:
            section = section.model_fields[name].annotation
        assert last in {field.alias for field in section.model_fields.values()}, key


def test_data_lie_in_their_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "data", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    (root / "a.csv").touch()
    os.symlink(outside, root / "link")
    os.symlink(root / "a.csv", root / "inner.csv")
    os.symlink(root, tmp_path / "root")
    source = {"data-source": "wide-csv"}
    for root_folder in (root, tmp_path / "root"):
        config = {**source, "data-root": str(root_folder)}
        for path in ("a.csv", "sub/../a.csv", "inner.csv", str(root / "a.csv")):
            assert path_read({**config, "data-path": path}).endswith(".csv")
        for path in ("../outside/b.csv", "/etc/passwd", "link/b.csv", "sub/../../outside/b.csv"):
            with pytest.raises(SettingsError, match=r"outside data\.root") as error:
                path_read({**config, "data-path": path})
            assert repr(path) in str(error.value)
    with pytest.raises(SettingsError, match=r"data\.root = '/nowhere': no such folder"):
        path_read({**source, "data-root": "/nowhere", "data-path": "a.csv"})


def test_the_files_folder_is_the_root_unless_it_names_another(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "data").mkdir()
    table = "[data]\nsource = 'wide-csv'\npath = '../data/a.csv'\n"
    file = write(tmp_path / "site", table)
    with pytest.raises(SettingsError, match=r"data\.path = '\.\./data/a\.csv': means .*outside"):
        path_read({"site": str(file)})
    file.write_text("[data]\nsource = 'wide-csv'\npath = 'a.csv'\nroot = '../data'\n")
    assert Path(path_read({"site": str(file)})).resolve() == tmp_path / "data" / "a.csv"
    config = {"site": str(file), "data-root": str(tmp_path / "site")}
    assert path_read(config) == str(tmp_path / "site" / "a.csv")
