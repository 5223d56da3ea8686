"""Vectors in place of images: computed once, kept on the disk, and used by every method."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedproto_app
from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.data.images.pool import ImagePool, LoadedImages
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.images.vectors import KeptVectors, with_vectors
from fedproto_app.models.pretrained import PretrainedEncoder
from fedproto_app.serving import Predictor, states_of
from fedproto_app.settings import DataSettings, settings_from
from fedproto_app.tasks.table import small_run
from tests.data.images.made_images import encoded, noise, write_folder
from tests.helpers.local_grid import LocalGrid, run_on, small_settings
from tests.models.made_encoders import write_encoder

TINTS = {"blue": 2, "green": 1, "red": 0}


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images of several sizes, whose colour is the class."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    files = {}
    for site in ("north", "south"):
        for name, channel in TINTS.items():
            for number in range(10):
                pixels = noise(number, 6 + number, 9, 3) // 2
                pixels[..., channel] += 100
                files[f"{site}/{name}/{number}.png"] = encoded(pixels)
    return write_folder(tmp_path / "photographs", files)


def settings_of(photographs: Path, **changes: object) -> dict[str, object]:
    """Return the settings of a run on vectors. The encoder lies beside the images."""
    file = photographs.parent / "colours.onnx"
    return {
        "data.source": "class-folders",
        "data.path": str(photographs),
        "data.image-size": 8,
        "data.pretrained-encoder": str(file if file.exists() else write_encoder(file)),
        "data.partition.scheme": "given",
        "data.partition.stages": 1,
        **changes,
    }


def pool_of(photographs: Path, **changes: object) -> ImagePool:
    return load_pool(data_of(photographs, **changes))


def data_of(photographs: Path, **changes: object) -> DataSettings:
    chosen = {"task": "classification", "method": "fedavg"}
    return settings_from({**chosen, **settings_of(photographs, **changes)}).data


def all_of(pool: ImagePool) -> LoadedImages:
    return pool.train.load(np.arange(len(pool.train.labels)))


def test_a_vector_stands_in_place_of_each_image(photographs: Path) -> None:
    vectors, images = pool_of(photographs), pool_of(photographs, **{"data.pretrained-encoder": ""})
    assert vectors.shape == (3, 1, 1)
    assert images.shape == (3, 8, 8)
    loaded = all_of(vectors).pixels
    assert loaded.dtype == np.float32
    means = all_of(images).pixels.mean(axis=(2, 3), keepdims=True) / 255
    np.testing.assert_allclose(loaded, means, atol=0.01)  # 8 × 8 is scaled to 4 × 4
    brightest = loaded[:, :, 0, 0].argmax(axis=1)
    assert [TINTS[vectors.classes[label]] for label in vectors.train.labels] == brightest.tolist()


def test_each_image_is_encoded_once(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_of(pool_of(photographs)).pixels
    (file,) = (photographs.parent / "fedproto" / "vectors").iterdir()
    assert file.parent.stat().st_mode & 0o077 == 0
    assert file.stat().st_mode & 0o077 == 0
    counts: list[int] = []
    vectors = PretrainedEncoder.vectors

    def counting(self: PretrainedEncoder, pixels: object) -> object:
        counts.append(len(pixels))  # type: ignore[arg-type]
        return vectors(self, pixels)  # type: ignore[arg-type]

    monkeypatch.setattr(PretrainedEncoder, "vectors", counting)
    np.testing.assert_array_equal(all_of(pool_of(photographs)).pixels, before)
    assert not counts
    write_folder(photographs, {"north/red/10.png": encoded(noise(99, 8, 8, 3))})
    pool = pool_of(photographs)
    for split in (pool.train, pool.test):
        split.load(np.arange(len(split.labels)))
    assert sum(counts) <= 1 + len(pool.test.labels)  # its neighbours in train are known
    write_encoder(photographs.parent / "colours.onnx", 2.0)  # has vectors of its own
    assert all_of(pool_of(photographs)).pixels.max() > 1.5 * before.max()
    assert len([*file.parent.iterdir()]) == 2


@pytest.mark.parametrize("obstacle", ["file", "damaged"])
def test_without_a_place_to_keep_them_vectors_are_computed(
    photographs: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = all_of(pool_of(photographs)).pixels
    folder = photographs.parent / "fedproto" / "vectors"
    (file,) = folder.iterdir()
    if obstacle == "damaged":
        file.write_bytes(b"no database" * 100)
    else:
        file.unlink()
        folder.rmdir()
        folder.write_text("in the way")
    np.testing.assert_array_equal(all_of(pool_of(photographs)).pixels, expected)
    (record,) = [r for r in caplog.records if "cannot be kept in" in r.getMessage()]
    assert str(folder) in record.getMessage()


def test_an_image_without_a_finite_vector_is_corrupt(photographs: Path) -> None:
    write_encoder(photographs.parent / "colours.onnx", 3e38)
    pool = pool_of(photographs)
    assert not all_of(pool).corrupt
    write_encoder(photographs.parent / "colours.onnx", float("inf"))
    loaded = all_of(pool_of(photographs))
    assert len(loaded.corrupt) == len(pool.train.labels)
    assert "turns it into NaN or infinite values" in loaded.corrupt[0]
    assert not loaded.pixels.any()


def test_settings_of_pixels_are_refused_for_vectors(photographs: Path) -> None:
    chosen = {**small_run("classification"), **settings_of(photographs), "method": "fedavg"}
    chosen |= {"output.dir": str(photographs.parent / "runs"), "output.pictures": False}
    for method, key, value in (
        ("fedavg", "model.image-encoder", "resnet18"),
        ("fedproto", "model.width-factors", "1,0.5"),
    ):
        changed = {**chosen, "method": method, key: value}
        with pytest.raises(FedProtoError, match=f"{key} = '{value}': for pixels, but data.pretr"):
            fedproto_app.run(changed, nodes=2, workers=1, progress=False)
    chosen |= {"method": "fedic", "data.partition.reserve-per-class": 1}
    with pytest.raises(FedProtoError, match="'fedic' learns from images at the server"):
        fedproto_app.run(chosen, nodes=2, workers=1, progress=False)


def test_new_arrays_must_have_the_size_that_files_are_scaled_to(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**small_run("classification"), **settings_of(photographs), "method": "analytic"}
    monkeypatch.chdir(photographs.parent)  # the encoder's path is made absolute
    settings |= {"output.dir": "runs", "data.pretrained-encoder": "colours.onnx"}
    run = fedproto_app.run(settings, nodes=2, workers=1, progress=False)
    monkeypatch.chdir("/")
    assert len(run.predict("north", noise(0, 2, 3, 8, 8))) == 2
    with pytest.raises(DataError, match=r"expected uint8 from 0 to 255, \[n, 1 or 3, 8, 8\]"):
        run.predict("north", noise(0, 2, 3, 9, 9))


def test_sites_name_the_encoder_and_keep_vectors_in_their_state(
    photographs: Path, tmp_path: Path
) -> None:
    nodes = []
    for site in ("north", "south"):
        write_encoder(photographs / site / "colours.onnx")
        (photographs / site / "site.toml").write_text(
            f'name = "{site}"\nstate-dir = "../../{site}"\ntells-classes = true\n[data]\n'
            'source = "class-folders"\npath = "."\npretrained-encoder = "colours.onnx"\n'
        )
        nodes.append({"site": str(photographs / site / "site.toml")})
    changes = {"data.pretrained-encoder": "wanted", "data.image-size": 8, "method": "analytic"}
    stages = {"data.partition.stages": 1, "rounds": 1}
    settings = small_settings(tmp_path, "classification", **changes, **stages)
    run_on(LocalGrid(settings, nodes), settings)
    (file,) = (tmp_path / "south" / "vectors").iterdir()
    assert file.suffix == ".sqlite"
    assert not (tmp_path / "fedproto").exists()
    (state,) = (tmp_path / "south").glob("*/south")
    predictor = Predictor(states_of(None, state), None)
    names, values = predictor.read(photographs / "south" / "green")
    assert len(names) == 10
    assert {predictor.columns[n] for n in predictor(values).argmax(axis=1)} == {"green"}


def test_vectors_of_another_length_or_type_are_not_taken(tmp_path: Path) -> None:
    kept = KeptVectors(tmp_path / "a.sqlite")
    kept.write({b"one": np.ones(3, np.float32), b"two": np.ones(4, np.float32)})
    with sqlite3.connect(tmp_path / "a.sqlite") as file:
        file.execute("INSERT INTO vectors VALUES (?, 7)", [b"three"])
    assert [*kept.read([b"one", b"two", b"three"], 3)] == [b"one"]


@pytest.mark.parametrize("method", ["analytic", "census", "fedavg", "fedrep", "gldp"])
def test_methods_learn_from_vectors(photographs: Path, method: str) -> None:
    changes = {"rounds": 6, "output.pictures": False, "optimizer.learning-rate": 0.5}
    settings = {**small_run("classification"), **settings_of(photographs), **changes}
    settings |= {"method": method, "output.dir": str(photographs.parent / "runs")}
    run = fedproto_app.run(settings, nodes=2, workers=1, progress=False)
    assert run.summary["accuracy_local"] > 0.8
    if method != "gldp":  # its prototypes are not kept
        reddish = noise(1, 4, 3, 8, 8) // 2
        reddish[:, 0] += 100
        assert [*run.predict("north", reddish).idxmax(axis=1)] == ["red"] * 4


def test_a_pool_may_be_replaced(photographs: Path) -> None:
    pool = pool_of(photographs, **{"data.pretrained-encoder": ""})
    turned = with_vectors(replace(pool, notes={"": "grey"}), data_of(photographs))
    assert turned.notes == pool.notes | {"": "grey"}
    assert len(turned.encoder) == 16
