"""Sites with files of their own: they keep their data and reveal little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.data.sources import load_histories
from fedproto_app.node.orders import require_allowed
from fedproto_app.node.policy import SumPolicy
from fedproto_app.node.site import Site, read_site
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.serving import forecast, open_state
from fedproto_app.settings import DataSettings, settings_from
from fedproto_app.trust.privacy_ledger import SitePrivacy
from fedproto_app.trust.signing import Signer
from fedproto_compared.fedic.auxiliary import AUXILIARY
from tests.helpers.local_grid import (
    Tamper,
    digits_settings,
    run_locally,
    sequence_settings,
    small_settings,
)
from tests.helpers.reported import Fields, fields_of, reported_metrics


def write_images(file: Path, stages: list[str]) -> Path:
    """An npz of noise: each stage's classes, a letter a class, eight train images each."""
    rng = np.random.default_rng(len(stages))
    labels = [(letter, n) for n, letters in enumerate(stages) for letter in letters] * 8
    stage = np.array([n for _, n in labels], dtype=np.int64)
    y = np.array([letter for letter, _ in labels])
    x = rng.integers(0, 255, size=(len(labels), 8, 8)).astype(np.uint8)
    arrays = {"x": x, "y": y, "stage": stage}
    np.savez(file, **{f"{n}_{part}": a for n, a in arrays.items() for part in ("train", "test")})
    return file


def image_site(
    folder: Path, name: str, stages: list[str], allows: str = "tells-classes = true"
) -> dict[str, Any]:
    """The node config of a site that has such images."""
    write_images(folder / f"{name}.npz", stages)
    return site_with(folder, name, f'source = "image-npz"\npath = "{name}.npz"', allows)


def site_with(folder: Path, name: str, data: str, allows: str = "") -> dict[str, Any]:
    """The node config of a site with a file of its own settings."""
    file = folder / f"{name}.toml"
    file.write_text(f'name = "{name}"\nstate-dir = "state"\n{allows}\n[data]\n{data}\n')
    return {"site": str(file)}


def run(tmp_path: Path, sites: dict[str, list[str]], **changes: Any) -> RunFolder:
    settings = digits_settings(
        tmp_path, **{"data.classes": "a,b,c", "data.partition.validation-share": 0.2, **changes}
    )
    nodes = [image_site(tmp_path, name, stages) for name, stages in sites.items()]
    return run_locally(settings, nodes)[0]


def listening(replies: list[tuple[str, Fields]]) -> Tamper:
    """Note the type and the fields of every reply."""

    def listen(node_id: int, reply: Message) -> Message:
        replies.append((reply.metadata.message_type, fields_of(reply)))
        return reply

    return listen


def test_sites_with_months_train_together_and_each_forecasts_its_own_dates(tmp_path: Path) -> None:
    """One site writes month ends, one month starts. One with quarters is turned away."""
    months = pd.date_range("2009-01-31", periods=180, freq="ME")
    times = {
        "ends": months.strftime("%Y-%m-%d"),
        "starts": (months - pd.offsets.MonthBegin()).strftime("%d.%m.%Y"),
        "quarters": months[::3].to_period("Q").astype(str),
    }
    nodes = []
    for name, texts in times.items():
        values = np.sin(np.arange(len(texts)) * np.pi / 6).round(3)
        pd.DataFrame({"time": texts, name: values}).to_csv(tmp_path / f"{name}.csv", index=False)
        nodes.append(site_with(tmp_path, name, f'source = "wide-csv"\npath = "{name}.csv"'))
    changes = {"method": "seasonal-naive", "data.period": 12, "data.source": "wide-csv"}
    folder, _ = run_locally(small_settings(tmp_path, **changes, **{"nodes.minimum": 3}), nodes)
    assert sorted(read_clients(folder.path).nodes) == ["ends", "starts"]
    forecasts = {}
    for name in ("ends", "starts"):
        (state,) = (tmp_path / "state").glob(f"*/{name}")
        data = settings_from(
            {"data.source": "wide-csv", "data.path": f"{tmp_path}/{name}.csv"}
        ).data
        (result,), _ = forecast(open_state(state), load_histories(data), 2)
        forecasts[name] = [result.when(ahead) for ahead in range(2)]
    assert forecasts["ends"] == ["2024-01-31", "2024-02-29"]
    assert forecasts["starts"] == ["2024-01-01", "2024-02-01"]


@pytest.mark.parametrize("method", ["gldp", "fedavg", "apfl"])
def test_sites_with_other_classes_and_stages_train_together(tmp_path: Path, method: str) -> None:
    """North has classes a and b, then c. South has b and c for good. Four rounds are two stages."""
    folder = run(tmp_path, {"north": ["ab", "c"], "south": ["bc"]}, method=method)
    assert [line["clients"] for line in read_rounds(folder.path)] == [2, 2, 2, 2]
    assert not any(line["refused"] for line in read_rounds(folder.path))
    clients = read_clients(folder.path)
    samples = dict(zip(clients.nodes, clients["samples"], strict=True))
    assert samples == {"north": 19, "south": 13}  # of 24 and 16, a fifth of each stage validates
    assert not (folder.path / "partition.csv").exists()


def test_of_its_classes_a_site_sends_prototypes_and_no_numbers(tmp_path: Path) -> None:
    replies: list[tuple[str, Fields]] = []
    settings = digits_settings(tmp_path, **{"data.classes": "a,b,c"})
    north = image_site(tmp_path, "north", ["ab", "c"])
    run_locally(settings, [north], tamper=listening(replies))
    metrics = {metric.name for _, reply in replies for metric in reported_metrics(reply)}
    assert "count/stage-1" in metrics
    assert not [name for name in metrics if "class-" in name]
    assert [reply["class_counts"] for _, reply in replies if "class_counts" in reply] == [{}]
    trained = [reply["classes"] for kind, reply in replies if kind == MessageType.TRAIN]
    assert trained == [[[0, 1]], [[0, 1]], [[2]], [[2]]]  # only those at hand


@pytest.mark.parametrize(
    ("method", "tells", "changes"),
    [
        ("gldp", "a prototype for each class.*tells-classes", {}),
        ("creff", "a gradient for each class.*tells-classes", {}),
        ("analytic", "samples of each class.*tells-classes", {}),
        ("census", "samples of each class.*tells-classes", {"census.features": 1}),
        ("analytic", "of a cluster.*shares-classes = true", {"analytic.sharing": "clustered"}),
    ],
)
def test_which_classes_it_has_a_site_tells_only_if_its_operator_allows_it(
    tmp_path: Path, method: str, tells: str, changes: dict[str, Any]
) -> None:
    settings = digits_settings(tmp_path, method=method, **changes)
    shares = "shares" in tells
    with pytest.raises(SettingsError, match=tells):
        require_allowed(settings, Site(tells_classes=shares))
    require_allowed(settings, Site(tells_classes=True, shares_classes=shares))


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({"method": "creff", "data.partition.reserve-per-class": 6}, 4),
        (
            {
                "method": "analytic",
                "analytic.sharing": "clustered",
                "data.partition.scheme": "given",
            },
            2,
        ),
    ],
)
def test_images_that_a_run_reserves_are_none_of_a_sites_own(
    tmp_path: Path, changes: dict[str, Any], rounds: int
) -> None:
    """Its stages are the site's too. A closed form ends when it has learnt each of them once."""
    allows = "tells-classes = true\nshares-classes = true"
    north = image_site(tmp_path, "north", ["ab", "c"], allows)
    settings = digits_settings(tmp_path, **{"data.classes": "a,b,c"}, **changes)
    folder, _ = run_locally(settings, [north])
    assert [line["clients"] for line in read_rounds(folder.path)] == [1] * rounds
    stopped = json.loads((folder.path / "summary.json").read_text())["stopped"]
    assert stopped == ("stages" if rounds == 2 else "rounds")
    # 24, one of which validates. A closed form learns from it too.
    assert read_clients(folder.path)["samples"][0] == (24 if rounds == 2 else 23)


def test_a_server_that_learns_among_sites_needs_images_that_its_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(AUXILIARY, raising=False)
    sites = {"north": ["ab", "c"], "south": ["bc"]}
    with pytest.raises(SettingsError, match="FEDPROTO_AUXILIARY must name labelled images"):
        run(tmp_path, sites, method="fedic", **{"output.name": "none"})
    monkeypatch.setenv(AUXILIARY, str(write_images(tmp_path / "own.npz", ["abc"])))
    folder = run(tmp_path, sites, method="fedic")
    assert [line["clients"] for line in read_rounds(folder.path)] == [2, 2, 2, 2]
    assert all(
        line["figures"]["auxiliary_accuracy_student"] > 0 for line in read_rounds(folder.path)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 2}, "rounds = 2: fewer than the 3 stages of the data"),
        (
            {"keep": "best-validation", "data.partition.stages": 1},
            "the data have 3 stages, which need keep = 'last'",
        ),
        ({"data.classes": "a,b"}, "'c'"),
    ],
)
def test_a_site_that_does_not_fit_the_run_says_why(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FederationError, match=message):
        run(tmp_path, {"north": ["ab", "c", "a"]}, **changes)


def sequence_site(
    folder: Path, name: str, clients: str, groups: dict[str, str] | None = None
) -> dict[str, Any]:
    """A site with 30 sequences of each client (a letter each). Some clients have a group."""
    rng = np.random.default_rng(len(clients))
    holder = np.repeat(list(clients), 30)
    y = np.tile(np.arange(3), 10 * len(clients))
    x = rng.normal(size=(len(y), 12, 2)).astype(np.float32) + y[:, None, None]
    arrays = {"x": x, "y": y, "client": holder}
    if groups:
        arrays["group"] = np.array([groups[client] for client in holder])
    file = folder / f"{name}.npz"
    np.savez(file, allow_pickle=False, **arrays)
    return {
        "data-source": "sequence-npz",
        "data-path": str(file),
        "node-name": name,
        "state-dir": str(folder / "state"),
    }


@pytest.mark.parametrize("method", ["fed-react", "ifca", "fedavg"])
def test_sites_keep_their_own_clients_of_sequences(tmp_path: Path, method: str) -> None:
    """data.clusters partitions shared data. A site's clients come from its file."""
    sites = [sequence_site(tmp_path, "north", "ab"), sequence_site(tmp_path, "south", "bcd")]
    settings = sequence_settings(tmp_path, method=method)
    assert settings.data.clusters.scheme == "dirichlet"
    folder, _ = run_locally(settings, sites)
    clients = read_clients(folder.path)
    names = [("a", "north"), ("b", "north"), ("b", "south"), ("c", "south"), ("d", "south")]
    assert list(zip(clients.clients, clients.nodes, strict=True)) == names
    assert set(clients.groups) == {""}
    for line in read_rounds(folder.path):
        assert line["refused"] == []
        assert line["clients"] == 5
        assert line["rand_index"] is None  # nobody knows the true clusters
    assert not (folder.path / "partition.csv").exists()


def test_only_if_all_sites_know_their_groups_is_there_a_rand_index(tmp_path: Path) -> None:
    north = sequence_site(tmp_path, "north", "ab", {"a": "x", "b": "y"})
    south = sequence_site(tmp_path, "south", "cd", {"c": "x", "d": "y"})
    silent = sequence_site(tmp_path, "west", "e")
    for name, sites, all_known in (
        ("2", [north, south], True),
        ("3", [north, south, silent], False),
    ):
        changes = {"output.name": name, "encoder.rounds": 1, "rounds": 1}
        folder, _ = run_locally(sequence_settings(tmp_path, **changes), sites)
        assert (read_rounds(folder.path)[-1]["rand_index"] is not None) == all_known


def test_how_many_sequences_of_a_class_a_site_has_it_does_not_tell(tmp_path: Path) -> None:
    replies: list[tuple[str, Fields]] = []
    north = sequence_site(tmp_path, "north", "ab")
    run_locally(sequence_settings(tmp_path), [north], tamper=listening(replies))
    metrics = {metric.name for _, reply in replies for metric in reported_metrics(reply)}
    assert metrics == {"accuracy", "validation-error"}
    assert [reply["class_counts"] for _, reply in replies if "class_counts" in reply] == [{}]


def wide_csv(file: Path, clients: str) -> Path:
    """Two weeks of hours of each client (a letter each), after a column of texts and the times."""
    rng = np.random.default_rng(len(clients))
    with file.open("w") as out:
        out.write(f"remark,when,{','.join(clients)}\n")
        for hour in range(14 * 24):
            values = ",".join(f"{value:.3f}" for value in rng.normal(size=len(clients)))
            out.write(f"fine,2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00,{values}\n")
    return file


def test_a_site_says_in_its_file_which_series_take_part(tmp_path: Path) -> None:
    sites = []
    for name, clients in (("north", "abc"), ("south", "de")):
        wide_csv(tmp_path / f"{name}.csv", clients)
        data = f'source = "wide-csv"\npath = "{name}.csv"\ntime-column = "when"\nclients = '
        sites.append(site_with(tmp_path, name, data + json.dumps(list(clients[-2:]))))
    configs = [{**site, "least-periods": 0} for site in sites]
    folder, _ = run_locally(small_settings(tmp_path), configs)
    clients = read_clients(folder.path)
    assert list(zip(clients.clients, clients.nodes, strict=True)) == [
        ("b", "north"),
        ("c", "north"),
        ("d", "south"),
        ("e", "south"),
    ]
    assert [path.name for path in sorted((tmp_path / "state").glob("*/*"))] == ["north", "south"]


def test_a_site_says_which_clients_of_images_and_sequences_take_part(tmp_path: Path) -> None:
    sequence_site(tmp_path, "north", "abc")
    data = 'source = "sequence-npz"\npath = "north.npz"\nclients = ["c", "a"]'
    folder, _ = run_locally(
        sequence_settings(tmp_path, method="fedavg"), [site_with(tmp_path, "north", data)]
    )
    assert read_clients(folder.path).clients == ["a", "c"]
    data = 'source = "digits"\nclients = ["client-002", "client-001"]'
    images = {**site_with(tmp_path, "south", data), "partition-id": 0, "num-partitions": 1}
    folder, _ = run_locally(digits_settings(tmp_path, **{"output.name": "images"}), [images])
    assert read_clients(folder.path).clients == ["client-001", "client-002"]


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        (small_settings, {"data-source": "synthetic-traffic"}),
        (digits_settings, {"data-source": "digits", "partition-id": 0}),
        (sequence_settings, {"data-source": "synthetic-air-writing", "partition-id": 0}),
    ],
)
def test_a_client_that_the_source_lacks_is_named_with_some_that_it_has(
    tmp_path: Path, settings: Any, source: dict[str, Any]
) -> None:
    node = {**site_with(tmp_path, "north", 'clients = ["nobody"]'), **source}
    with pytest.raises(FederationError, match=r"data\.clients: .* has no client 'nobody'; it has "):
        run_locally(settings(tmp_path), [node])


def test_a_run_cannot_choose_a_sites_clients_or_columns() -> None:
    of_a_run = {
        "clients": "a",
        "columns": "b",
        "time_column": "c",
        "client_column": "d",
        "time_unit": "s",
        "time_zone": "Europe/Berlin",
        "missing": "zero",
        "header": "false",
        "delimiter": "tab",
        "decimal": "comma",
        "scale": "120,35",
    }
    settings = read_site({"data-source": "long-csv"}).reads(DataSettings(**of_a_run))
    for key, value in of_a_run.items():
        assert getattr(settings, key) == getattr(DataSettings(), key) != value


@pytest.mark.parametrize(
    ("site", "changes", "message"),
    [
        (
            Site(),
            {},
            "only in a simulation, .*: the clients of a community see each other's",
        ),
        (
            Site(partition_id=0),  # nor does a node with a part of one data set read the run's file
            {"graph.source": "file", "graph.path": "/etc/passwd"},
            r"graph\.path = '/etc/passwd': a run cannot point",
        ),
    ],
)
def test_sites_do_not_join_the_windows_of_their_clients(
    tmp_path: Path, site: Site, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        require_allowed(small_settings(tmp_path, method="fcgcn", **changes), site)


def test_noise_of_masked_sums_needs_known_sites(tmp_path: Path) -> None:
    """A server that invents the other nodes would know all noise but one share."""
    noise = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 2.0}
    settings = small_settings(tmp_path, method="fedavg", **noise, **{"aggregation.secure": True})
    alone = Site(privacy=SitePrivacy(min_noise=1.0))
    with pytest.raises(SettingsError, match=r"demands noise, .* \(masked-sums\.known\)"):
        require_allowed(settings, alone)
    with pytest.raises(SettingsError, match=r"demands privacy\.min-noise = 3"):
        require_allowed(settings, Site(privacy=SitePrivacy(min_noise=3.0)))
    sum_policy = SumPolicy(known=(Signer(bytes(range(32))).line,))
    require_allowed(settings, alone.model_copy(update={"masked_sums": sum_policy}))
    require_allowed(settings, Site())
