"""`Run.predict` classifies new images and sequences as the run classified its test samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

import fedproto_app
from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.data.images.clients import ClientImages
from fedproto_app.data.sequences.clients import ClientSequences, resampled
from fedproto_app.tasks.table import load_shard, small_run

SITES = ("north", "south")
CLASSES = ("falling", "rising")


def made_run(folder: Path, task: str, method: str, **changes: object) -> fedproto_app.Run:
    output = {"output.dir": str(folder), "output.pictures": False}
    settings = {**small_run(task), **output, **changes, "method": method}
    return fedproto_app.run(settings, nodes=1, workers=1, progress=False)


def slopes(generator: np.random.Generator, site: int, count: int) -> tuple[NDArray[Any], list[str]]:
    """Return sequences [n, 30, 1] that fall or rise, on a level and a scale of the site."""
    rises = np.arange(count) % 2
    lines = np.linspace(-1, 1, 30) * (2 * rises[:, None] - 1)
    values = (lines + generator.normal(0, 0.3, lines.shape)) * 10**site + 100 * site
    return values[:, :, None], [CLASSES[rise] for rise in rises]


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> fedproto_app.Run:
    """Make a run whose sites have scales of their own, with sequences longer than its steps."""
    folder, generator = tmp_path_factory.mktemp("sequences"), np.random.default_rng(0)
    values, labels = zip(*(slopes(generator, site, 40) for site in range(2)), strict=True)
    np.savez(
        folder / "slopes.npz",
        x=np.concatenate(values),
        y=np.concatenate(labels),
        client=np.repeat(SITES, 40),
    )
    changes = {
        "data.source": "sequence-npz",
        "data.path": str(folder / "slopes.npz"),
        "data.clusters.scheme": "given",
        "data.sequences.scaling": "client",
        "data.sequences.steps": 20,
    }
    return made_run(folder, "sequence-classification", "analytic", **changes)


def test_sequences_are_shortened_and_scaled_like_those_of_their_client(
    sequences: fedproto_app.Run,
) -> None:
    new, labels = slopes(np.random.default_rng(1), 1, 10)
    table = sequences.predict("south", list(new))
    assert tuple(table.columns) == CLASSES
    assert np.array(CLASSES)[table.to_numpy().argmax(axis=1)].tolist() == labels
    np.testing.assert_allclose(table.sum(axis=1), 1)
    short = np.stack([resampled(steps.astype(np.float32), 20) for steps in new])
    np.testing.assert_allclose(sequences.predict("south", short), table, rtol=1e-4, atol=1e-6)
    flat = sequences.predict("south", new[:, :, 0].tolist())  # with one value a step
    pd.testing.assert_frame_equal(flat, table)
    unscaled = sequences.predict("north", list(new))  # everything lies far above this site's values
    assert (unscaled - table).abs().to_numpy().max() > 0.01


@pytest.mark.parametrize("method", ["solo", "analytic", "fed-react"])
def test_the_padding_of_other_sequences_changes_nothing(tmp_path: Path, method: str) -> None:
    changes = {"data.sequences.scaling": "none", "keep": "best-validation"}
    widths = {"model.width-factors": "1 0.5"} if method == "solo" else {}
    run = made_run(tmp_path, "sequence-classification", method, **changes, **widths)
    name, client = list(load_shard(run.settings, 0, 1).clients.items())[1]
    assert isinstance(client, ClientSequences)
    table = run.predict(name, client.test.values)
    right = table.to_numpy().argmax(axis=1) == client.test.targets
    assert right.mean() == pytest.approx(run.clients.set_index("client")["accuracy_kept"][name])
    longer = np.pad(client.test.values[0], [(0, 40), (0, 0)], "edge")
    beside = run.predict(name, [longer, *client.test.values]).iloc[1:]
    np.testing.assert_allclose(beside, table, rtol=1e-4, atol=1e-6)


def test_without_its_encoder_a_head_predicts_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path, "sequence-classification", "fed-react")
    for file in tmp_path.rglob("first-phase.safetensors"):
        file.unlink()
    with pytest.raises(FedProtoError, match=r"its kept model lacks 'encoder\."):
        run.predict(run.clients["client"][0], [np.zeros((5, 2))])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([np.zeros((5, 2))], r"sequence 0 is float64 \[5, 2\], expected a list .* \[T, 1\]"),
        ([np.zeros((5, 1)), np.array(5)], r"sequence 1 is int64 \[\], expected a list"),
        ([np.array([["a"]])], "sequence 0 is <U1"),
        ([np.array([[0], [np.nan]])], "sequence 0: value 0 of step 1 is not finite"),
        ([np.array([[1e300]])], "sequence 0: value 0 of step 0 is not finite"),
        ([np.zeros((0, 1))], "sequence 0 has no steps"),
        ([torch.zeros(5, 1, requires_grad=True)], "sequence 0: .* requires grad"),
        ([[[1], [1, 2]]], "sequence 0: expected an array, got parts of different shapes"),
        ([], "there is no sequence"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(
    sequences: fedproto_app.Run, samples: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        sequences.predict("south", samples)


def test_a_client_without_a_model_is_refused(sequences: fedproto_app.Run) -> None:
    with pytest.raises(FedProtoError, match=r"client 'est'; .*there are models of north, south$"):
        sequences.predict("est", [np.zeros((5, 1))])
    with pytest.raises(FedProtoError, match="client is of type ndarray, expected its name"):
        sequences.predict(np.zeros((5, 1)), "south")  # type: ignore[arg-type]


def test_images_are_classified_as_in_the_run(tmp_path: Path) -> None:
    run = made_run(tmp_path, "classification", "analytic", **{"analytic.features": 5})
    shard = load_shard(run.settings, 0, 1)
    accuracy = run.clients.set_index("client")["accuracy_kept"]
    for name, client in shard.clients.items():
        assert isinstance(client, ClientImages)
        pixels = np.concatenate([stage.test.pixels for stage in client.stages])
        labels = np.concatenate([stage.test.labels for stage in client.stages])
        predicted = run.predict(name, pixels).to_numpy().argmax(axis=1)
        assert (predicted == labels).mean() == pytest.approx(accuracy[name])
    integers = pixels.astype(int).tolist()
    pd.testing.assert_frame_equal(run.predict(name, integers), run.predict(name, pixels))
    for wrong, message in (
        (pixels.astype(float), r"are float64 \[\d+, 1, 8, 8\], expected uint8 .* \[n, 1, 8, 8\]"),
        (pixels.astype(int) + 255, r"are int64 \[\d+, 1, 8, 8\], expected uint8 from 0 to 255"),
        (pixels[:, 0], r"are uint8 \[\d+, 8, 8\], expected"),
        ([pixels[0], pixels[0, :, 1:]], "the images: expected an array, got parts of different"),
        (pixels[:0], "there is no image"),
        (None, "the samples are None, expected an array or a list"),
    ):
        with pytest.raises(DataError, match=message):
            run.predict(name, wrong)


def test_numbers_have_the_units_of_the_data(tmp_path: Path) -> None:
    changes = {"data.sequences.target-scale": 50.0, "data.sequences.scaling": "none"}
    run = made_run(tmp_path, "sequence-regression", "solo", **changes)
    name, client = next(iter(load_shard(run.settings, 0, 1).clients.items()))
    assert isinstance(client, ClientSequences)
    errors = run.predict(name, client.test.values)["y_hat"] - client.test.targets
    noted = run.clients.set_index("client")["rmse_kept"][name]
    assert np.sqrt((errors**2).mean()) == pytest.approx(noted)


def test_a_run_says_why_it_predicts_nothing(tmp_path: Path) -> None:
    prototypes = made_run(tmp_path, "classification", "gldp")
    with pytest.raises(FedProtoError, match=r"gldp.inference = 'head' keeps all"):
        prototypes.predict(prototypes.clients["client"][0], [])
    forecasts = made_run(tmp_path, "forecasting", "naive")
    with pytest.raises(FedProtoError, match=r"its models forecast series; see .* Run\.forecast"):
        forecasts.predict(forecasts.clients["client"][0], [])
