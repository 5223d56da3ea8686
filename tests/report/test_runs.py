"""Reading runs, grouping them over seeds, and naming them by their differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.runs import (
    Run,
    Spread,
    find_runs,
    group_runs,
    labels,
    read_clients,
    read_rounds,
    read_run,
    read_task,
)
from tests.report.made_runs import grouped, make_classification_run, make_run


def test_artefacts_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", errors=(0.5, None), settings={"a": {"b": {"c": 5.0}}})
    run = read_run(folder)
    assert run.summary["parameters_up_per_client_round"] == 768
    assert run.settings == {"a.b.c": 5.0}
    assert [record["round"] for record in read_rounds(folder)] == [1, 2, 3]
    assert read_clients(folder).finite("mse") == [0.5]


def test_a_damaged_artefact_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "summary.json").write_text("{")
    with pytest.raises(FedProtoError, match=r"a/summary\.json: cannot be read"):
        read_run(folder)
    (folder / "clients.csv").unlink()
    with pytest.raises(FedProtoError, match=r"a/clients\.csv: No such file"):
        read_clients(folder)


def test_runs_are_found_at_a_place_and_directly_inside_it(tmp_path: Path) -> None:
    make_run(tmp_path / "all" / "a")
    make_run(tmp_path / "all" / "b")
    (tmp_path / "all" / "stopped").mkdir()
    (tmp_path / "all" / "stopped" / "settings.toml").write_text("seed = 0\n")
    (tmp_path / "all" / "unrelated").mkdir()
    runs, without = find_runs([tmp_path / "all", tmp_path / "all" / "a"])
    assert [run.folder.name for run in runs] == ["a", "b"]  # a is not counted twice
    assert without == [tmp_path / "all" / "stopped"]


def test_places_without_any_finished_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match="no finished run"):
        find_runs([tmp_path])
    with pytest.raises(FedProtoError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_seeds_of_one_experiment_become_mean_and_sample_deviation(tmp_path: Path) -> None:
    runs = [
        read_run(make_run(tmp_path / f"s{seed}", seed=seed, mse=mse))
        for seed, mse in enumerate((0.25, 0.5, 0.75))
    ]
    (group,), repeated = group_runs(runs)
    assert [run.summary["seed"] for run in group.runs] == [0, 1, 2]
    assert group.spread("mse") == Spread(0.5, 0.25, 0.25 / 3**0.5)
    assert repeated == []
    (group,) = grouped(make_run(tmp_path / "a", mae=None))
    assert (group.spread("mse"), group.spread("mae")) == (Spread(0.375), Spread(None))


def test_a_repeated_seed_counts_once_and_the_last_one_stays(tmp_path: Path) -> None:
    old, new = (
        read_run(make_run(tmp_path / name, mse=mse)) for name, mse in (("t1", 1.0), ("t2", 2.0))
    )
    (group,), repeated = group_runs([new, old])
    assert group.runs == (new,)
    assert repeated == [old]


def test_groups_are_ordered_by_dataset_then_error(tmp_path: Path) -> None:
    figures = [
        ("z", "solo", 0.1),
        ("m4", "fedavg", 0.3),
        ("m4", "solo", 0.2),
        ("m4", "fedrep", float("nan")),
        ("m4", "fedproto", None),
    ]
    runs = [
        read_run(make_run(tmp_path / str(i), dataset=dataset, method=method, mse=mse))
        for i, (dataset, method, mse) in enumerate(figures)
    ]
    groups, _ = group_runs(runs)
    order = [(group.dataset, group.method) for group in groups]
    assert order == [
        ("m4", "solo"),
        ("m4", "fedavg"),
        ("m4", "fedproto"),  # unknown and diverged last
        ("m4", "fedrep"),
        ("z", "solo"),
    ]


def test_labels_name_only_what_differs_within_dataset_and_method(tmp_path: Path) -> None:
    def make(name: str, method: str, seed: int, weight: float) -> Path:
        settings = {
            "seed": seed,
            "rounds": 40,
            "output": {"name": name},
            "fuels": {"inter-weight": weight},
        }
        return make_run(
            tmp_path / name, settings=settings, method=method, mse=weight, settings_digest=name
        )

    folders = [make("a", "fuels", 0, 1.0), make("b", "fuels", 1, 5.0), make("c", "solo", 0, 9.0)]
    groups = grouped(*folders)
    assert labels(groups) == ["fuels inter-weight=1.0", "fuels inter-weight=5.0", "solo"]


def test_labels_tell_that_an_encoder_was_given_but_not_where_it_lies(tmp_path: Path) -> None:
    def make(name: str, seed: int, path: str, clusters: int) -> Run:
        settings = {"encoder": {"path": path}, "fed-react": {"clusters": clusters}}
        folder = make_run(
            tmp_path / name,
            settings=settings,
            method="fed-react",
            seed=seed,
            mse=float(clusters),
            settings_digest=f"{bool(path)} {clusters}",
        )
        return read_run(folder)

    runs = [make("a", 0, "/x/s0", 2), make("b", 1, "/x/s1", 2), make("c", 0, "/x/s0", 3)]
    groups, _ = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert labels(groups) == ["fed-react clusters=2", "fed-react clusters=3"]
    groups, _ = group_runs([runs[0], make("d", 0, "", 2)])
    assert labels(groups) == ["fed-react encoder.path=given", "fed-react encoder.path="]


def test_a_run_knows_its_task_and_old_ones_are_forecasts(tmp_path: Path) -> None:
    old, new = make_run(tmp_path / "old"), make_classification_run(tmp_path / "new")
    assert (read_run(old).task, read_task(old)) == ("forecasting", "forecasting")
    assert (read_run(new).task, read_task(new)) == ("classification", "classification")


def test_groups_are_ordered_by_task_first_and_accuracy_falls(tmp_path: Path) -> None:
    figures = {"a": 0.25, "b": 0.75, "c": float("nan"), "d": 0.5}
    runs = [
        make_classification_run(tmp_path / name, dataset="a", method=name, accuracy_local=figure)
        for name, figure in figures.items()
    ]
    groups, _ = group_runs([read_run(run) for run in [*runs, make_run(tmp_path / "z")]])
    assert [group.method for group in groups] == ["fuels", "b", "d", "a", "c"]


def test_a_task_of_another_version_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", task="clustering")
    with pytest.raises(FedProtoError, match="task = 'clustering': unknown here; known: forecast"):
        group_runs([read_run(run)])
