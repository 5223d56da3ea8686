"""Events for TensorBoard, of finished runs and of runs that go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.wire import array_record
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.export import EventLog, write_events
from fedproto_app.report.listeners import folder_listeners
from fedproto_app.report.runs import read_run
from fedproto_app.server.listeners import Listener, RoundEnd
from fedproto_app.server.round_log import History
from fedproto_app.settings import Settings, settings_from
from tests.report.event_file import events, masked_crc, scalars
from tests.report.made_runs import make_run, round_record

pytest.importorskip("tensorboardX")


def test_the_readers_checksum() -> None:
    # RFC 3720, B.4: 32 bytes of 0 have CRC32C 0x8a9136aa, masked as TensorFlow does it.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", [0.25, 0.75], settings={"seed": 0, "rounds": 3}))
    assert write_events([run], None) == [tmp_path / "run" / "tensorboard"]
    figures = scalars(tmp_path / "run" / "tensorboard")
    assert figures["loss/total"] == {1: 4.0, 2: 2.0, 3: pytest.approx(4 / 3)}
    assert figures["summary/mse"] == {3: 0.375}
    other_values = {
        value.tag: value
        for event in events(tmp_path / "run" / "tensorboard")
        for value in event.summary.value
        if value.WhichOneof("value") != "simple_value"
    }
    histogram = other_values["clients/mse"].histo
    assert (histogram.num, histogram.sum, histogram.min, histogram.max) == (2, 1.0, 0.25, 0.75)
    (text,) = (value for tag, value in other_values.items() if tag.startswith("settings"))
    assert b"rounds = 3" in text.tensor.string_val[0]
    with pytest.raises(FedProtoError, match="holds events already"):
        write_events([run], None)


def test_several_runs_have_a_folder_each(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / place / "run")) for place in ("a", "b")]
    with pytest.raises(FedProtoError, match="two runs have this name"):
        write_events(runs, tmp_path / "out")
    second = replace(runs[1], folder=make_run(tmp_path / "b" / "other"))
    assert write_events([runs[0], second], tmp_path / "out") == [
        tmp_path / "out" / "run",
        tmp_path / "out" / "other",
    ]


def test_a_strangers_name_of_a_loss_is_a_plain_tag(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.round(round_record(1, loss={"../<script>": 1.0}))
    assert "loss/_/_/_2f__3c_script_3e_" in scalars(tmp_path)


def live(tmp_path: Path, **changes: Any) -> Settings:
    place = {"output.dir": str(tmp_path), "output.name": "run", "output.tensorboard": True}
    return settings_from({**place, **changes})


def ended(number: int, **line: Any) -> RoundEnd:
    """The end of a round with this line of rounds.jsonl."""
    record = round_record(number, **line)
    model = array_record({})
    return RoundEnd(record.pop("round"), {}, model, History(), evaluated=True, line=record)


@contextmanager
def listening(settings: Settings, folder: RunFolder) -> Iterator[list[Listener]]:
    """What writes down the rounds of a run, until the block ends."""
    listeners = folder_listeners(settings, folder)
    yield listeners
    for listener in listeners:
        listener.close()


def test_rounds_are_there_as_they_end_and_a_resumed_run_writes_them_once(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "tensorboard"
    settings = live(tmp_path)
    with RunFolder(settings) as run, listening(settings, run) as listeners:
        for number in (1, 2, 3):
            for listener in listeners:
                listener.round_ended(ended(number))
            assert sorted(scalars(folder)["loss/total"]) == list(range(1, number + 1))
    settings = live(tmp_path, **{"output.resume": True})
    with RunFolder(settings) as run:
        assert run.resume() is None  # no checkpoint: from the first round on
        with listening(settings, run) as listeners:
            for listener in listeners:
                listener.round_ended(ended(1, loss={"total": 9.0}))
    starts = [event for event in events(folder) if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in starts] == [(1, 1)]  # START
    assert scalars(folder)["loss/total"][1] == 9.0
    assert len(list(folder.iterdir())) == 2


def test_without_the_setting_there_are_no_events(tmp_path: Path) -> None:
    settings = live(tmp_path, **{"output.tensorboard": False})
    with RunFolder(settings) as run, listening(settings, run) as listeners:
        for listener in listeners:
            listener.round_ended(ended(1))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_without_the_library_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(SettingsError, match=r"output\.tensorboard = true: .*\[tensorboard\]"):
        RunFolder(live(tmp_path))
    assert not (tmp_path / "run").exists()
