"""Small networks, written as files of pretrained encoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx import NodeProto, TensorProto, helper, save_model

Shape = Sequence[int | str | None]
IMAGES: Shape = ("n", 3, 4, 4)


def write_network(
    file: Path,
    nodes: Sequence[NodeProto],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    constants: Sequence[TensorProto] = (),
    kind: int = TensorProto.FLOAT,
) -> Path:
    """Write a network with these inputs and outputs."""
    ends = [
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in values.items()]
        for values in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "network", *ends, initializer=constants)
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), str(file))
    return file


def write_encoder(file: Path, factor: float = 1.0, shape: Shape = IMAGES) -> Path:
    """Write a network that turns an image into its mean red, green and blue, times a factor."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["means", "factor"], ["vectors"]),
    ]
    times = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    return write_network(file, nodes, {"images": shape}, {"vectors": ("n", 3)}, [times])
