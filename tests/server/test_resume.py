"""A run that is killed and resumed ends as if nothing had happened, whenever it was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.metrics import Metric
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.experiments.invariants import SmallRuns, kills_change_nothing
from fedproto_app.report.artefacts import RunFolder, settings_digest
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.checkpoint import stored_settings
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings, settings_from
from tests.local_grid import LocalGrid, small_settings, synthetic_nodes
from tests.reported import fields_of, reported_metrics, with_fields, with_metric

SEQUENCES = {"encoder.rounds": 1, "encoder.steps": 1, "data.synthetic.sequences": 160}
# State of FUELS in addition to models: clients guided before; random partners.
REMEMBERED = {"fuels.renew-optimizer": True, "fuels.comparison": "random"}
FIRST = [
    ("forecasting", "fuels"),
    ("forecasting", "fedrep"),
    ("classification", "gldp"),
    ("classification", "analytic"),
    ("sequence-classification", "fed-react"),
]
MORE = [
    *[
        ("forecasting", method)
        for method in ("fedavg", "fedproto", "apfl", "ditto", "fcgcn", "fedgru", "pfedme", "cnfgnn")
    ],
    *[("forecasting", method) for method in ("fedavg", "fedproto", "apfl", "ditto", "pfedme")],
    *[
        ("forecasting", method)
        for method in ("fedavg", "fedproto", "fedpcl", "fedda", "apfl", "ditto")
    ],
    *[("forecasting", method) for method in ("fedala", "knn-per")],
    ("classification", "solo"),
    *[("classification", method) for method in ("census", "creff", "fedic", "fedtgp")],
    *[("sequence-classification", method) for method in ("ifca", "flsc", "fedprox")],
    ("sequence-regression", "fed-react"),
]
PAIRS = [*FIRST, *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in MORE)]
SECONDS = ("seconds", "node_seconds", "bytes_down")  # nodes get an encoder once more


class Killed(BaseException):
    """The server is killed here."""


def settings_of(tmp_path: Path, task: str, method: str, **changes: Any) -> Settings:
    defaults = {"method": method, "participation": 0.6, "rounds": 4}
    return small_settings(tmp_path, task, **{**defaults, **changes})


def play(
    tmp_path: Path, settings: Settings, kill: int = 0, validation: Sequence[float] = ()
) -> RunFolder:
    """A run, or its rest.

    kill: the message whose reply the server does not live to see. validation: the validation
    errors of the rounds as the clients report them, in place of the true ones.
    """
    nodes = nodes_sharing(settings.data, 2, tmp_path / f"state-{settings.output.name}")
    answered = 0

    def count(node_id: int, reply: Message) -> Message:
        nonlocal answered
        answered += reply.metadata.message_type != "query.roster"
        if 0 < kill == answered:
            raise Killed
        fields, metric = fields_of(reply), Metric("validation-mse")
        if validation and metric in reported_metrics(fields):
            error = validation[int(reply.metadata.group_id) - 1]
            with_fields(reply, with_metric(fields, metric, [error] * len(fields["names"])))
        return reply

    grid = LocalGrid(settings, nodes, tamper=count)
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    return folder


def changed(settings: Settings, **raised: int) -> Settings:
    return settings_from(settings.model_dump(by_alias=True) | raised)


def resumed(settings: Settings, **raised: int) -> Settings:
    table = changed(settings, **raised).model_dump(by_alias=True)
    table["output"]["resume"] = True
    return settings_from(table)


def killed(tmp_path: Path, settings: Settings, kill: int) -> None:
    with pytest.raises(Killed):
        play(tmp_path, settings, kill)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in SECONDS}
        for line in read_rounds(folder)
    ]


def assert_same(actual: Path, expected: Path) -> None:
    assert (actual / "clients.csv").read_text() == (expected / "clients.csv").read_text()
    assert lines(actual) == lines(expected)
    names = {path.name for path in expected.glob("*.npz")}
    assert {path.name for path in actual.glob("*.npz")} == names
    for name in names:
        with np.load(actual / name) as actual_arrays, np.load(expected / name) as expected_arrays:
            assert actual_arrays.files == expected_arrays.files
            for array in actual_arrays.files:
                np.testing.assert_array_equal(
                    actual_arrays[array], expected_arrays[array], err_msg=f"{name} {array}"
                )
    for path in (expected / "model").glob("*"):
        actual_arrays, expected_arrays = load_file(actual / "model" / path.name), load_file(path)
        assert all(
            np.array_equal(actual_arrays[name], expected_arrays[name]) for name in expected_arrays
        )
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (actual, expected)]
    for summary in summaries:
        del summary["seconds"], summary["bytes_down"], summary["settings_digest"]
    assert summaries[0] == summaries[1]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedproto_app.core.run_lock._DYING", 0.1)


@pytest.mark.parametrize(("task", "method"), PAIRS)
def test_killed_in_the_middle_of_any_round_it_ends_the_same(
    tmp_path: Path, task: str, method: str
) -> None:
    """A node has worked already, the other not; killed twice."""
    changes = SEQUENCES if "sequence" in task else REMEMBERED if method == "fuels" else {}
    runs = SmallRuns(task, method, tmp_path, **changes)
    deviation = kills_change_nothing(runs)
    assert deviation.held, deviation
    rounds = 2 if method == "analytic" else 4  # one a stage
    phases = method in ("fed-react", "ifca", "flsc")
    assert len(lines(runs.run("killed", 2))) == rounds + phases


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_killed_in_the_first_round_it_begins_anew(tmp_path: Path, method: str) -> None:
    uninterrupted = settings_of(tmp_path, "forecasting", method, **{"output.name": "whole"})
    cut = settings_of(tmp_path, "forecasting", method, **{"output.name": "parts"})
    killed(tmp_path, cut, kill=1)
    assert_same(play(tmp_path, resumed(cut)).path, play(tmp_path, uninterrupted).path)


@pytest.mark.parametrize(
    ("method", "file"),
    [
        *[("fuels", name) for name in ("server.json", "digests.json", "strategy.npz")],
        *[("fedavg", name) for name in ("server.json", "digests.json", "model.safetensors")],
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(
    tmp_path: Path, method: str, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    uninterrupted = settings_of(tmp_path, "forecasting", method, **{"output.name": "whole"})
    cut = settings_of(tmp_path, "forecasting", method, **{"output.name": "parts"})
    killed(tmp_path, cut, kill=7 if method == "fuels" else 13)  # in round 4
    newest = tmp_path / "runs" / "parts" / "checkpoint" / "round-000003" / file
    newest.write_bytes(newest.read_bytes()[:-3])
    folder = play(tmp_path, resumed(cut))
    assert "event=checkpoint-refused" in caplog.text
    assert "round-000003 is damaged" in caplog.text
    assert "event=resumed run=parts round=2" in caplog.text
    assert_same(folder.path, play(tmp_path, uninterrupted).path)


def test_without_any_whole_checkpoint_it_begins_anew(tmp_path: Path) -> None:
    uninterrupted = settings_of(tmp_path, "forecasting", "fuels", **{"output.name": "whole"})
    cut = settings_of(tmp_path, "forecasting", "fuels", **{"output.name": "parts"})
    killed(tmp_path, cut, kill=7)
    for place in (tmp_path / "runs" / "parts" / "checkpoint").glob("round-*"):
        (place / "server.json").unlink()
    assert_same(play(tmp_path, resumed(cut)).path, play(tmp_path, uninterrupted).path)


def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path: Path) -> None:
    uninterrupted = settings_of(tmp_path, "forecasting", "fuels", **{"output.name": "whole"})
    cut = settings_of(tmp_path, "forecasting", "fuels", **{"output.name": "parts"})
    killed(tmp_path, cut, kill=5)
    with (tmp_path / "runs" / "parts" / "rounds.jsonl").open("a") as rounds:
        rounds.write('{"round": 3, "loss": {"to')  # the round's checkpoint was still to come
    assert_same(play(tmp_path, resumed(cut)).path, play(tmp_path, uninterrupted).path)


@pytest.mark.parametrize("complete", [0, 1, 2])
def test_power_that_fails_may_cost_lines_but_not_the_run(tmp_path: Path, complete: int) -> None:
    """All checkpoints are on the disk, and of rounds.jsonl some lines and a piece of one."""
    settings = settings_of(tmp_path, "forecasting", "solo", rounds=3)
    file = play(tmp_path, settings).path / "rounds.jsonl"
    all_lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(all_lines[:complete]) + all_lines[complete][:100])
    play(tmp_path, resumed(settings, rounds=4))
    assert [line["round"] for line in lines(file.parent)] == [*range(1, complete + 1), 4]


def test_patience_is_remembered(tmp_path: Path) -> None:
    """The validation error is best in round 2; killed in round 4, the run ends after it."""
    errors = [3.0, 1.0, 2.0, 2.0, 0.5, 0.4]
    changes = {"patience": 2, "rounds": 6, "participation": 1.0}
    uninterrupted = settings_of(
        tmp_path, "forecasting", "solo", **changes, **{"output.name": "whole"}
    )
    cut = settings_of(tmp_path, "forecasting", "solo", **changes, **{"output.name": "parts"})
    expected = play(tmp_path, uninterrupted, validation=errors)
    with pytest.raises(Killed):
        play(tmp_path, cut, kill=7, validation=errors)
    folder = play(tmp_path, resumed(cut), validation=errors)
    assert len(lines(folder.path)) == 4
    assert_same(folder.path, expected.path)


def test_a_resumed_run_waits_for_the_nodes_it_had(tmp_path: Path) -> None:
    cut = settings_of(tmp_path, "forecasting", "fuels", **{"nodes.start-deadline": 0.5})
    killed(tmp_path, cut, kill=5)
    grid = LocalGrid(resumed(cut), synthetic_nodes(2, tmp_path / "state-test"))
    grid.connected = {1000}
    looks = 0
    connected_nodes = grid.get_node_ids

    def get_node_ids() -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            grid.connected = {1000, 1001}
        return connected_nodes()

    grid.get_node_ids = get_node_ids  # type: ignore[method-assign]
    with RunFolder(resumed(cut)) as folder:
        conduct(grid, resumed(cut), folder)
    assert [line["asked"] for line in lines(folder.path)] == [2, 2, 2, 2]


def test_a_resumed_run_goes_on_without_a_node_that_left_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = settings_of(tmp_path, "forecasting", "fuels", **{"nodes.start-deadline": 0.3})
    killed(tmp_path, cut, kill=5)
    grid = LocalGrid(resumed(cut), synthetic_nodes(2, tmp_path / "state-test"))
    grid.connected = {1000}
    with RunFolder(resumed(cut)) as folder:
        conduct(grid, resumed(cut), folder)
    assert [line["asked"] for line in lines(folder.path)] == [2, 2, 1, 1]
    assert "event=missing node=1" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "summary.json").write_text("{}"), "this run is finished"),
        (lambda run: (run / "settings.toml").unlink(), r"no settings\.toml"),
        (lambda run: (run / "settings.toml").write_text("rounds = 0"), "rounds = 0"),
        (lambda run: (run / "settings.toml").write_text("rounds ="), "settings.toml"),
        (shutil.rmtree, "holds no run"),
    ],
)
def test_what_cannot_be_resumed_says_why(
    tmp_path: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    cut = settings_of(tmp_path, "forecasting", "fuels")
    killed(tmp_path, cut, kill=3)
    spoil(tmp_path / "runs" / "test")
    with pytest.raises(SettingsError, match=message):
        RunFolder(resumed(cut))


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path: Path) -> None:
    cut = settings_of(tmp_path, "forecasting", "fuels")
    killed(tmp_path, cut, kill=3)
    reseeded = settings_of(tmp_path, "forecasting", "fuels", seed=1, **{"fuels.inter-weight": 1.0})
    with pytest.raises(SettingsError, match=r"seed = 1, was 0; fuels\.inter-weight = 1\.0, was 5"):
        RunFolder(resumed(reseeded))
    patient = settings_of(tmp_path, "forecasting", "fuels", **{"nodes.start-deadline": 9.0})
    RunFolder(resumed(patient)).close()  # how long to wait may differ


LONGER = {"rounds": 5, "evaluate-every": 1}


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_a_finished_run_that_gets_more_rounds_is_one_that_had_them_from_the_start(
    tmp_path: Path, method: str
) -> None:
    from_start = settings_of(tmp_path, "forecasting", method, **LONGER, **{"output.name": "whole"})
    short = settings_of(tmp_path, "forecasting", method, rounds=3, **{"output.name": "parts"})
    play(tmp_path, short)
    folder = play(tmp_path, resumed(short, rounds=5))
    assert len(lines(folder.path)) == 5
    assert_same(folder.path, play(tmp_path, from_start).path)
    stored = stored_settings(folder.path)
    assert (stored.rounds, stored.output.resume) == (5, False)
    assert settings_digest(stored) == settings_digest(from_start)


def test_an_extended_run_that_is_killed_is_an_unfinished_one(tmp_path: Path) -> None:
    short = settings_of(tmp_path, "forecasting", "solo", rounds=2)
    play(tmp_path, short)
    killed(tmp_path, resumed(short, rounds=4), kill=1)
    run = tmp_path / "runs" / "test"
    assert not (run / "summary.json").exists()
    assert len(lines(play(tmp_path, resumed(stored_settings(run))).path)) == 4


def test_a_run_that_lost_its_patience_goes_on_with_more_of_it(tmp_path: Path) -> None:
    errors = [3.0, 1.0, 2.0, 2.0, 0.5, 0.4]
    changes = {"rounds": 6, "participation": 1.0}
    short = settings_of(tmp_path, "forecasting", "solo", patience=2, **changes)
    play(tmp_path, short, validation=errors)
    for refused in (short, changed(short, rounds=9)):
        with pytest.raises(SettingsError, match="patience = 2 ended it after round 4"):
            RunFolder(resumed(refused))
    folder = play(tmp_path, resumed(short, patience=3), validation=errors)
    assert len(lines(folder.path)) == 6


@pytest.mark.parametrize(
    ("had", "changes", "message"),
    [
        ({}, {}, "this run is finished: all 2 rounds are done; to go on raise rounds"),
        ({}, {"rounds": 1}, "rounds = 1: .*test was planned with 2; rounds can only be increased"),
        ({"patience": 2}, {"rounds": 3, "patience": 1}, "patience = 1: .*test had 2"),
        ({}, {"rounds": 3, "patience": 1}, "patience = 1: .*test had 0"),
    ],
)
def test_a_run_can_only_get_more(
    tmp_path: Path, had: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    short = settings_of(tmp_path, "forecasting", "solo", **{"rounds": 2, **had})
    play(tmp_path, short)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "test").iterdir()}
    with pytest.raises(SettingsError, match=message):
        RunFolder(resumed(short, **changes))
    del before[tmp_path / "runs" / "test" / "lock"]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_finished_run_without_a_checkpoint_is_not_begun_anew(tmp_path: Path) -> None:
    short = settings_of(tmp_path, "forecasting", "solo", rounds=2)
    shutil.rmtree(play(tmp_path, short).path / "checkpoint")
    with pytest.raises(SettingsError, match="has no intact checkpoint"):
        RunFolder(resumed(short, rounds=3))


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"data.partition.stages": 2}, False),
        ({"data.partition.stages": 2, "classification.stage-schedule": "cyclic"}, True),
        ({"data.partition.stages": 1}, True),
        ({"data.partition.scheme": "given"}, False),  # the source may have stages
        ({"data.partition.scheme": "given", "keep": "best-validation"}, True),
    ],
)
def test_stages_that_depend_on_the_rounds_fix_them(
    tmp_path: Path, changes: dict[str, Any], fits: bool
) -> None:
    table = {"keep": "last", "patience": 0, "rounds": 4, **changes}
    short = settings_of(tmp_path, "classification", "solo", **table)
    RunFolder(short).close()
    if fits:
        RunFolder(resumed(short, rounds=5)).close()
        return
    RunFolder(resumed(short)).close()
    with pytest.raises(SettingsError, match=r"rounds = 5, was 4: .* the rounds are divided among"):
        RunFolder(resumed(short, rounds=5))


def test_a_run_is_not_resumed_while_it_is_written(tmp_path: Path) -> None:
    cut = settings_of(tmp_path, "forecasting", "fuels")
    with RunFolder(cut), pytest.raises(SettingsError, match="is being written by process"):
        RunFolder(resumed(cut))
    RunFolder(resumed(cut)).close()
