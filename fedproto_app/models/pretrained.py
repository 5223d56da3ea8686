"""A pretrained encoder of images, which is not trained or sent, and classifiers of its vectors.

The encoder is a file in ONNX, so it can come from any library. Unlike a pickle, such a file holds
no code that would run while it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel

LONGEST_VECTOR, LARGEST_SIDE = 4096, 1024
LINEAR = ENCODER + "linear."
AT_ONCE = 8  # images that the network gets. More are not faster on a processor
_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_EXPECTED = "expected a network that turns float32 images [n, 3, S, S], for any n, into [n, D]"


class PretrainedEncoder:
    """Turns images into vectors.

    digest: identifies the file's content. side: S, the width and height of the images that the
    network takes. length: D, the length of a vector. Raises `DataError` if the file holds no such
    network.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise DataError(
                f"{path}: pretrained encoders need onnxruntime; pip install 'fedproto-app[onnx]'"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised anyway
        # Weights in other files would not be part of the digest.
        options.add_session_config_entry(_FOLDER_OF_WEIGHTS, "/nonexistent")
        try:
            content = path.read_bytes()
            self.digest = sha256(content).hexdigest()[:16]
            self._session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
            self.side, self._input, self._output = _sizes_of(self._session)
            self.length = self._checked_length()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        except Exception as error:  # whatever a damaged or foreign file causes
            if "external data" in str(error).lower():
                error = ValueError("its weights lie in another file; export them with it")
            raise DataError(
                f"{path}: no pretrained encoder: {_first_line(error)}; {_EXPECTED}"
            ) from None

    def _checked_length(self) -> int:
        """Return D. Raises `ValueError` if the network does not treat each image by itself."""
        shape = (AT_ONCE, 3, self.side, self.side)
        images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).byte()
        together, alone = self.vectors(images), [self.vectors(image[None]) for image in images]
        shapes = {vector.shape for vector in alone}
        if together.ndim != 2 or len(together) != AT_ONCE or shapes != {together[:1].shape}:
            raise ValueError("it does not return a vector for each image")
        if not torch.allclose(torch.cat(alone), together, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError("the vector of an image depends on the other images")
        if not 1 <= (length := together.shape[1]) <= LONGEST_VECTOR:
            raise ValueError(f"its vectors have {length} values, not 1 to {LONGEST_VECTOR}")
        return length

    def vectors(self, pixels: Tensor) -> Tensor:
        """Turn images [n, C, H, W] in uint8 into vectors [n, D] in float32.

        The network gets red, green and blue from 0 to 1, scaled to S × S pixels.
        """
        sides, parts = (self.side, self.side), []
        for part in torch.split(pixels, AT_ONCE):
            images = part.expand(-1, 3, -1, -1).float() / 255
            if images.shape[2:] != sides:
                images = F.interpolate(images, sides, mode="bilinear", antialias=True).clamp(0, 1)
            parts.append(self._run(images.numpy()))
        return torch.from_numpy(np.concatenate(parts))

    def _run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            (vectors,) = self._session.run([self._output], {self._input: images})
        except Exception as error:  # onnxruntime's errors have no type of their own
            raise DataError(f"the pretrained encoder failed: {_first_line(error)}") from None
        return np.asarray(vectors, np.float32)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _sizes_of(session: Any) -> tuple[int, str, str]:
    """Return S, and the names of the network's input and of its output of vectors.

    Raises `ValueError` for a network of another kind.
    """
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise ValueError(f"it has the inputs {', '.join(i.name for i in inputs)}")
    count, *shape = inputs[0].shape or [None]
    if inputs[0].type != "tensor(float)" or len(shape) != 3 or shape != [3, shape[1], shape[1]]:
        raise ValueError(f"it takes {inputs[0].type} {inputs[0].shape}")
    if isinstance(count, int):  # else a name, which stands for any number
        raise ValueError(f"it takes exactly {count} images")
    if not isinstance(shape[1], int) or shape[1] > LARGEST_SIDE:
        raise ValueError(f"it takes images of {shape[1]} pixels, not of 1 to {LARGEST_SIDE}")
    outputs = [output for output in session.get_outputs() if len(output.shape) == 2]
    if len(outputs) != 1:
        all_shapes = ", ".join(f"{o.name} {o.shape}" for o in session.get_outputs())
        raise ValueError(f"it returns {all_shapes}")
    return shape[1], inputs[0].name, outputs[0].name


@lru_cache(maxsize=1)
def _loaded(path: Path, size: int, changed: int) -> PretrainedEncoder:
    return PretrainedEncoder(path)


def pretrained_encoder(path: str) -> PretrainedEncoder:
    """Return the encoder in this file, which a process loads only once while it is unchanged."""
    try:
        state = Path(path).stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not Path(path).is_file():  # reading a pipe would wait for ever
        raise DataError(f"{path}: is not a file")
    return _loaded(Path(path), state.st_size, state.st_mtime_ns)


def vectors_name(digest: str) -> str:
    """Return the name of an encoder's vectors in the shape of the data."""
    return f"vectors of the pretrained encoder {digest}"


class FixedVectorClassifier(LinearHeadModel):
    """A linear head on vectors [K, B, D, 1, 1]. The encoder has no parameters."""

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (vectors,) = inputs
        return vectors.flatten(start_dim=2)


class VectorClassifier(LinearHeadModel):
    """One layer with ReLU on vectors [K, B, D, 1, 1] as the encoder, and a linear head.

    Vectors are scaled to the length √D, so that step sizes do not depend on the encoder's scale.
    """

    never_negative = True

    def __init__(self, length: int, classes: int, representation_dim: int) -> None:
        super().__init__(representation_dim, classes)
        self._length = length

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        layer = linear_parameters(self._length, self.representation_dim, generator)
        return with_prefixes({LINEAR: layer})

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (vectors,) = inputs
        vectors = F.normalize(vectors.flatten(start_dim=2), dim=-1) * self._length**0.5
        return torch.relu(linear(parameters, LINEAR, vectors))
