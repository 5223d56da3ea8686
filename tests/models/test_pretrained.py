"""Pretrained encoders: their vectors by hand, and files that are refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from fedproto_app.core.errors import DataError
from fedproto_app.models.pretrained import (
    AT_ONCE,
    PretrainedEncoder,
    VectorClassifier,
    pretrained_encoder,
)
from tests.models.made_encoders import IMAGES, Shape, write_encoder, write_network

FLAT = helper.make_node("Flatten", ["images"], ["vectors"])


def test_vectors_by_hand(tmp_path: Path) -> None:
    encoder = PretrainedEncoder(write_encoder(tmp_path / "colours.onnx"))
    assert (encoder.side, encoder.length) == (4, 3)
    plain = torch.tensor([51, 102, 255], dtype=torch.uint8)[None, :, None, None]
    for height, width in ((4, 4), (9, 5), (2, 1)):  # scaled down and up
        images = plain.expand(AT_ONCE + 1, 3, height, width)
        expected = torch.tensor([0.2, 0.4, 1.0]).expand(AT_ONCE + 1, 3)
        torch.testing.assert_close(encoder.vectors(images), expected)
    grey = encoder.vectors(torch.full((1, 1, 6, 6), 51, dtype=torch.uint8))
    torch.testing.assert_close(grey, torch.full((1, 3), 0.2))


def test_a_vector_does_not_depend_on_the_other_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (("filters", (24, 3, 3, 3)), ("matrix", (24 * 14 * 14, 40)))
    ]
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["responses"]),
        helper.make_node("Relu", ["responses"], ["positive"]),
        helper.make_node("Flatten", ["positive"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["vectors"]),
    ]
    inputs: dict[str, Shape] = {"images": ("n", 3, 16, 16)}
    path = write_network(tmp_path / "net.onnx", nodes, inputs, {"vectors": ("n", 40)}, weights)
    encoder = PretrainedEncoder(path)
    images = torch.randint(0, 256, (2 * AT_ONCE + 3, 3, 20, 12), dtype=torch.uint8)
    vectors = encoder.vectors(images)
    assert torch.equal(vectors[5:], encoder.vectors(images[5:]))
    assert torch.equal(vectors[-1:], encoder.vectors(images[-1:]))


def test_a_changed_file_is_another_encoder(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "a.onnx")
    first = pretrained_encoder(str(path))
    assert pretrained_encoder(str(path)) is first
    path.unlink()
    write_encoder(path, -2.0)
    second = pretrained_encoder(str(path))
    assert second.digest != first.digest
    assert second.vectors(torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)).tolist() == [[-2.0] * 3]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 4, 4), "it takes exactly 2 images"),
        (("n", 1, 4, 4), "it takes tensor(float) ['n', 1, 4, 4]"),
        (("n", 3, 4, 5), "it takes tensor(float) ['n', 3, 4, 5]"),
        (("n", 4, 4, 3), "it takes tensor(float) ['n', 4, 4, 3]"),
        (("n", 3, "side", "side"), "it takes images of side pixels, not of 1 to 1024"),
        (("n", 3, 2000, 2000), "it takes images of 2000 pixels, not of 1 to 1024"),
        (("n", 3, 64, 64), "its vectors have 12288 values, not 1 to 4096"),
    ],
)
def test_other_networks_are_refused(tmp_path: Path, shape: Shape, message: str) -> None:
    outputs: dict[str, Shape] = {"vectors": ("n", "d")}
    path = write_network(tmp_path / "net.onnx", [FLAT], {"images": shape}, outputs)
    text = f"{path}: no pretrained encoder: {message}; expected a network that turns"
    with pytest.raises(DataError, match=re.escape(text)):
        PretrainedEncoder(path)


def test_the_only_output_of_vectors_is_taken(tmp_path: Path) -> None:
    same = helper.make_node("Identity", ["images"], ["map"])
    outputs: dict[str, Shape] = {"map": IMAGES, "vectors": ("n", 48)}
    path = write_network(tmp_path / "net.onnx", [same, FLAT], {"images": IMAGES}, outputs)
    assert PretrainedEncoder(path).length == 48
    path = write_network(tmp_path / "map.onnx", [same], {"images": IMAGES}, {"map": IMAGES})
    with pytest.raises(DataError, match=r"it returns map \['n', 3, 4, 4\]"):
        PretrainedEncoder(path)
    add = helper.make_node("Add", ["images", "more"], ["sum"])
    two: dict[str, Shape] = {"images": IMAGES, "more": IMAGES}
    path = write_network(tmp_path / "two.onnx", [add], two, {"sum": IMAGES})
    with pytest.raises(DataError, match="it has the inputs images, more"):
        PretrainedEncoder(path)
    whole: dict[str, Shape] = {"images": IMAGES}
    kind = TensorProto.DOUBLE
    path = write_network(tmp_path / "double.onnx", [FLAT], whole, {"vectors": ("n", 48)}, kind=kind)
    with pytest.raises(DataError, match=r"it takes tensor\(double\)"):
        PretrainedEncoder(path)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [
                ("ReduceMean", ["images"], ["mean"], {"axes": [0]}),
                ("Sub", ["images", "mean"], ["d"], {}),
                ("Flatten", ["d"], ["vectors"], {}),
            ],
            "the vector of an image depends on the other images",
        ),
        (
            [
                ("ReduceMean", ["images"], ["mean"], {"axes": [0]}),
                ("Flatten", ["mean"], ["vectors"], {}),
            ],
            "it does not return a vector for each image",
        ),
        ([("Reshape", ["images", "one"], ["vectors"], {})], "the pretrained encoder failed: "),
    ],
)
def test_networks_that_do_not_treat_each_image_by_itself_are_refused(
    tmp_path: Path, nodes: list[tuple[str, list[str], list[str], dict[str, Any]]], message: str
) -> None:
    made = [helper.make_node(kind, *ends, **options) for kind, *ends, options in nodes]
    one = helper.make_tensor("one", TensorProto.INT64, [2], [1, 48])
    inputs: dict[str, Shape] = {"images": IMAGES}
    path = write_network(tmp_path / "net.onnx", made, inputs, {"vectors": ("n", 48)}, [one])
    with pytest.raises(DataError, match=message):
        PretrainedEncoder(path)


def test_weights_in_another_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would not be part of the digest."""
    model = onnx.load(write_encoder(tmp_path / "a.onnx"))
    factor = numpy_helper.from_array(np.ones(3, np.float32), "factor")
    model.graph.initializer[0].CopyFrom(factor)
    file = tmp_path / "b.onnx"
    onnx.save_model(model, file, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.chdir(tmp_path)  # where onnxruntime looks for them
    with pytest.raises(DataError, match="its weights lie in another file; export them with it"):
        PretrainedEncoder(file)


def test_the_scale_of_vectors_does_not_matter_for_trained_layers() -> None:
    model = VectorClassifier(4, 2, 3)
    layer = model.encoder_parameters(torch.Generator().manual_seed(0))
    parameters = {name: value.unsqueeze(0) for name, value in layer.items()}
    vectors = torch.rand(1, 5, 4, 1, 1)
    encoded = model.encode(parameters, vectors)
    torch.testing.assert_close(model.encode(parameters, 1e6 * vectors), encoded)
    assert torch.isfinite(model.encode(parameters, 0 * vectors)).all()


def test_other_files_are_refused_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = write_encoder(tmp_path / "a.onnx").read_bytes()
    files = {"text": b"weights", "half": whole[: len(whole) // 2], "empty": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}: no pretrained encoder: [^\n]+$"):
            PretrainedEncoder(tmp_path / name)
    with pytest.raises(DataError, match=r"none\.onnx: cannot be read: No such file"):
        pretrained_encoder(str(tmp_path / "none.onnx"))
    with pytest.raises(DataError, match=f"{tmp_path}: is not a file"):
        pretrained_encoder(str(tmp_path))
    assert capfd.readouterr().err == ""


def test_without_onnxruntime_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DataError, match=r"pip install 'fedproto-app\[onnx\]'"):
        PretrainedEncoder(write_encoder(tmp_path / "a.onnx"))
