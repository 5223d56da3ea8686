"""Two phases: an encoder, learned or given, and then the method. A given one changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from safetensors.torch import save as torch_bytes

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings
from fedproto_app.tasks.sequences.task import SequenceTask
from fedproto_app.tasks.table import make_task
from tests.helpers.local_grid import (
    LocalGrid,
    regression_settings,
    run_locally,
    sequence_settings,
    synthetic_nodes,
)

TIMED = ("seconds", "node_seconds")


def nodes(tmp_path: Path, source: str = "synthetic-air-writing") -> list[dict[str, Any]]:
    return synthetic_nodes(2, tmp_path / "state", source)


def second_phase(folder: RunFolder, first: int) -> list[dict[str, Any]]:
    """The lines of the rounds after the first phase, without times and numbers of rounds."""
    later_lines = read_rounds(folder.path)[first:]
    return [{k: v for k, v in line.items() if k not in (*TIMED, "round")} for line in later_lines]


@pytest.mark.parametrize(
    ("method", "make", "inside"),
    [
        ("fed-react", sequence_settings, ""),
        ("fed-react", regression_settings, "model/global.safetensors"),
        ("flsc", sequence_settings, "model/global.safetensors"),
        ("ifca", regression_settings, ""),
    ],
)
def test_a_given_encoder_gives_the_second_phase_of_the_run_that_learned_it(
    tmp_path: Path, method: str, make: Callable[..., Settings], inside: str
) -> None:
    """Number by number, even where only some of the clients train in a round."""
    changes = {"method": method, "participation": 0.6}
    learning = make(tmp_path, **changes)
    source = learning.data.source
    learned, _ = run_locally(learning, nodes(tmp_path, source))
    # Runs of equally long names, as messages carry them and their bytes are counted.
    reused = {"encoder.path": str(learned.path / inside), "output.name": "next"}
    reusing_settings = make(tmp_path, **changes, **reused)
    reusing, _ = run_locally(reusing_settings, nodes(tmp_path, source))
    assert len(read_rounds(reusing.path)) == reusing_settings.all_rounds == 4
    assert len(read_rounds(learned.path)) == learning.all_rounds == 6
    assert second_phase(reusing, 0) == second_phase(learned, 2)
    rows = [(folder.path / "clients.csv").read_text().splitlines() for folder in (reusing, learned)]
    assert len(rows[0]) == 1 + 8
    for reusing_row, learned_row in zip(*rows, strict=True):
        assert _but_kept_round(reusing_row) == _but_kept_round(learned_row)


def _but_kept_round(row: str) -> list[str]:
    cells = row.split(",")
    return cells[:4] + cells[5:]


def test_the_encoder_is_the_runs_global_model_and_stays_as_it_was_learned(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path)
    folder, grid = run_locally(settings, nodes(tmp_path))
    model = load_file(folder.path / "model" / "global.safetensors")
    assert all(name.startswith("encoder") for name in model)
    checkpoints = sorted((folder.path / "checkpoint").glob("round-*"))
    assert [path.name for path in checkpoints] == ["round-000005", "round-000006"]
    with np.load(checkpoints[-1] / "strategy.npz", allow_pickle=False) as state:
        assert state["heads"].shape == (8, 10, 11)
    first = grid.sent[2].content.array_records["arrays"]  # after two roster queries
    assert grid.sent[2].metadata.group_id == "1"
    changed = [name for name in model if not np.array_equal(first[name].numpy(), model[name])]
    assert changed  # it has learned something

    round_lines = read_rounds(folder.path)
    assert [line["accuracy"] is None for line in round_lines] == [True, True, *[False] * 4]
    assert [sorted(line["loss"]) for line in round_lines] == [
        *[["contrastive", "total"]] * 2,
        *[["head", "total"]] * 4,
    ]
    assert [line["figures"] == {} for line in round_lines] == [True, True, *[False] * 4]


# --- encoders that do not fit -----------------------------------------------------------------


def task_of(tmp_path: Path, **changes: Any) -> SequenceTask:
    task = make_task(sequence_settings(tmp_path, **changes), DataShape((3,), tuple("0123456789")))
    assert isinstance(task, SequenceTask)
    return task


def drawn_encoder(tmp_path: Path, **changes: Any) -> Arrays:
    """Return the encoder of a run with these settings before it learns."""
    initial = task_of(tmp_path, **changes).initial_encoder()
    return {name: value.numpy() for name, value in initial.items()}


def error_message(tmp_path: Path, path: Path) -> str:
    """Return the error of a run with this ``encoder.path``, which must stop after the rosters."""
    settings = sequence_settings(tmp_path, **{"encoder.path": str(path)})
    grid = LocalGrid(settings, nodes(tmp_path))
    with pytest.raises(SettingsError) as caught:
        conduct(grid, RunFolder(settings))
    assert {message.metadata.message_type for message in grid.sent} == {"query.roster"}
    message = str(caught.value)
    assert message.startswith(f"encoder.path = {str(path)!r}: ")
    assert "\n" not in message
    return message


BFLOAT16 = {"encoder.x": torch.zeros(2, dtype=torch.bfloat16)}  # which NumPy does not know


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 no tensors", b"\xff" * 64, BFLOAT16], ids=range(4)
)
def test_a_file_of_another_kind_cannot_be_read(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "encoder.safetensors"
    file.write_bytes(content if isinstance(content, bytes) else torch_bytes(content))
    message, reason = (
        error_message(tmp_path, file),
        "cannot be read as a safetensors file of float32",
    )
    # A package that NumPy learns bfloat16 from may have been imported.
    assert f"{file} {reason}" in message or (content is BFLOAT16 and "need float32" in message)


@pytest.mark.parametrize(
    ("path", "missing"), [("none", "none"), ("empty", "empty/model/global.safetensors")]
)
def test_a_path_without_a_file_or_run_says_what_is_missing(
    tmp_path: Path, path: str, missing: str
) -> None:
    (tmp_path / "empty").mkdir()
    assert f"there is no {tmp_path / missing}" in error_message(tmp_path, tmp_path / path)


def _changed(arrays: Arrays, change: Callable[[NDArray[np.float32]], Any]) -> Arrays:
    """The last array is another one, or is left out (None)."""
    changed = {**arrays, max(arrays): change(arrays[max(arrays)])}
    return {name: array for name, array in changed.items() if array is not None}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path, good: _changed(good, lambda _: None), "{name} is no array; {expected}"),
        (lambda path, good: _changed(good, lambda a: a.astype(np.float64)), "{name} is float64"),
        (lambda path, good: _changed(good, lambda a: a * np.nan), "{name} holds NaN"),
        (lambda path, good: {**good, "head.weight": good[max(good)]}, "head.weight is {shape}"),
        (lambda path, good: drawn_encoder(path, **{"encoder.output-dim": 12}), "float32 [12"),
        (lambda path, good: drawn_encoder(path, **{"encoder.blocks": 4}), "dimensions need"),
        (
            lambda path, good: {
                name: value.numpy()
                for name, value in task_of(path, method="fedavg").initial_parameters().items()
            },
            "dimensions need ",
        ),
    ],
    ids=["missing", "float64", "nan", "more", "wider", "deeper", "supervised"],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, make: Any, reason: str) -> None:
    good = drawn_encoder(tmp_path)
    file = tmp_path / "encoder.safetensors"
    save_file(make(tmp_path, good), file)
    shape = f"float32 {list(good[max(good)].shape)}"
    expected = f"[encoder] and data with 3 dimensions need {shape}"
    message = error_message(tmp_path, file)
    assert reason.format(name=max(good), shape=shape, expected=expected) in message
    if reason == "float32 [12":
        assert "[encoder] and data with 3 dimensions need float32 [10" in message


def test_the_file_is_no_longer_needed_once_the_run_has_begun(tmp_path: Path) -> None:
    """It is read once. A node that is equipped anew gets it from the server's memory."""
    file = tmp_path / "encoder.safetensors"
    save_file(drawn_encoder(tmp_path), file)
    settings = sequence_settings(tmp_path, **{"encoder.path": str(file)})

    def remove(node_id: int, reply: Any) -> Any:
        phase = (node_id, reply.metadata.message_type, reply.metadata.group_id)
        if phase == (1001, MessageType.EVALUATE, "1"):
            file.unlink()
            for folder in (tmp_path / "state").glob("test-*"):
                shutil.rmtree(folder / "1")
        return reply

    folder, _ = run_locally(settings, nodes(tmp_path), tamper=remove)
    assert [line["clients"] for line in read_rounds(folder.path)] == [8, 4, 8, 8]


def test_without_rounds_the_encoder_stays_as_it_is_drawn(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path, **{"encoder.rounds": 0, "rounds": 1})
    folder, _ = run_locally(settings, synthetic_nodes(1, tmp_path / "state", settings.data.source))
    model = load_file(folder.path / "model" / "global.safetensors")
    drawn = drawn_encoder(tmp_path)
    assert set(model) == set(drawn)
    for name, value in drawn.items():
        np.testing.assert_array_equal(model[name], value)
