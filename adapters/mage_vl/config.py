"""A checkpoint's `config.json`, `preprocessor_config.json` and `generation_config.json`, as far as inference
needs them.

A published folder has these, `model.safetensors.index.json` with two parts (696 tensors, bfloat16),
`streammind_gate.safetensors` beside them (64 tensors, in no index) and a Qwen2 tokenizer's files. Its remote
code is not used.

Confirmed by public sources (the published `config.json` as several independent ports quote it): every default
of `VisionConfig` and `TextConfig`, and the token ids. The gate has no entry in `config.json`: the defaults of
`GateConfig` are those of the published gate's code, and agree with its 1,073,494,728 bytes. A folder of
another size says its gate's in a table `streammind_gate_config`, which no published file has. Of
`preprocessor_config.json`, patch and merge size, CLIP's mean and standard deviation and `max_pixels` are
confirmed; `min_pixels` is inferred.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from duplex.core.errors import DuplexError, ErrorCode

_T = TypeVar("_T")
_Count: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]
_GATE_TABLE = "streammind_gate_config"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown keys are ignored: checkpoints carry training settings too."""


class VisionConfig(_Config, frozen=True, kw_only=True):
    """Mage-ViT and the merger after it: `vision_config`."""

    hidden_size: _Count = 1024
    intermediate_size: _Count = 4096
    num_hidden_layers: _Count = 24
    num_attention_heads: _Count = 16
    num_channels: _Count = 3
    patch_size: _Count = 16  # pixels
    temporal_patch_size: _Count = 1  # frames
    spatial_merge_size: _Count = 2  # patches, in each direction, that become one token
    out_hidden_size: _Count = 2560
    frame_windows_size: _Count = 4  # steps of time of one grid row that attend to each other
    layer_norm_eps: float = 1e-6
    layer_norm_type: str = "layer_norm"
    hidden_act: str = "gelu"
    rope_theta: float = 10000.0
    use_head: bool = False
    use_patch_position_encoding: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def patch_width(self) -> int:
        """Numbers of one patch: 768."""
        return self.num_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merged(self) -> int:
        """Patches that become one token: 4."""
        return self.spatial_merge_size**2

    @property
    def token_pixels(self) -> int:
        """Pixels of a token's side: 32. Images are multiples of it in height and width."""
        return self.patch_size * self.spatial_merge_size


class TextConfig(_Config, frozen=True, kw_only=True):
    """The Qwen3 decoder: `text_config`. Positions are plain, one for each token."""

    hidden_size: _Count = 2560
    intermediate_size: _Count = 9728
    num_hidden_layers: _Count = 36
    num_attention_heads: _Count = 32
    num_key_value_heads: _Count = 8
    head_dim: _Count = 128
    vocab_size: _Count = 151936
    max_position_embeddings: _Count = 262144  # tokens
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5e6


class GateConfig(_Config, frozen=True, kw_only=True):
    """The cognition gate of `streammind_gate.safetensors`: one Mamba block, then a Qwen3 of two logits."""

    hidden_size: _Count = 2560
    state_size: _Count = 16
    conv_kernel: _Count = 4  # frames, the present one counted
    expand: _Count = 2
    dt_rank: _Count = 160
    intermediate_size: _Count = 12288
    num_hidden_layers: _Count = 4
    num_attention_heads: _Count = 32
    num_key_value_heads: _Count = 8
    head_dim: _Count = 128
    rms_norm_eps: float = 1e-6
    layer_norm_eps: float = 1e-5

    @property
    def inner_size(self) -> int:
        """Channels of the Mamba block: 5,120."""
        return self.expand * self.hidden_size


class ImageConfig(_Config, frozen=True, kw_only=True):
    """`preprocessor_config.json`: how pixels become numbers."""

    patch_size: _Count = 16
    merge_size: _Count = 2
    temporal_patch_size: _Count = 1
    min_pixels: _Count = 3136
    max_pixels: _Count = 4_000_000
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    rescale_factor: float = 1 / 255


class MageConfig(_Config, frozen=True, kw_only=True):
    """A checkpoint's configuration: `config.json`, with what its other files say."""

    vision_config: VisionConfig = VisionConfig()
    text_config: TextConfig = TextConfig()
    gate_config: GateConfig = GateConfig()
    image_config: ImageConfig = ImageConfig()
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = (151645, 151643)


def read_config(folder: Path) -> MageConfig:
    """The configuration of a checkpoint's folder. A null says what a missing key does: the default.

    Raises:
        DuplexError: `BAD_CONFIG`: not there, not a Mage-VL checkpoint, or one with parts that are not served;
            by file and key.
    """
    path = folder / "config.json"
    tree = _tree(path)
    if tree.get("model_type") != "mage_vl":
        raise _bad(f"{path}: model_type {tree.get('model_type')!r} is not served, only 'mage_vl'")
    text = tree.get("text_config", {})
    if isinstance(text, dict):
        if (kind := text.get("model_type", "qwen3")) != "qwen3":
            raise _bad(f"{path}: text_config.model_type {kind!r} is not served, only 'qwen3'")
        tree["text_config"] = _with_rope(path, text)
    preprocessor = folder / "preprocessor_config.json"
    if preprocessor.is_file():
        tree["image_config"] = _image_tree(_tree(preprocessor))
    tree["gate_config"] = tree.get(_GATE_TABLE, {})
    tree["eos_token_ids"] = _ends(folder, tree)
    config = _convert(path, tree, MageConfig)
    _check(path, config)
    return config


def read_image_config(tree: dict[str, Any]) -> ImageConfig:
    """The same of a `preprocessor_config.json` alone, whose tree was read elsewhere.

    Raises:
        DuplexError: `BAD_CONFIG`: as above.
    """
    name = Path("preprocessor_config.json")
    return _convert(name, _image_tree(_without_nulls(tree)), ImageConfig)


def published(config: MageConfig) -> dict[str, Any]:
    """The tree of a `config.json` that `read_config` reads back, in the published form."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    gate, _ = tree.pop("gate_config"), tree.pop("image_config")
    ends = tree.pop("eos_token_ids")
    text = tree["text_config"]
    theta = text.pop("rope_theta")
    text |= {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": ends[0],
        "tie_word_embeddings": config.tie_word_embeddings,
        "layer_types": ["full_attention"] * text["num_hidden_layers"],
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "use_sliding_window": False,
    }
    tree["vision_config"]["model_type"] = "mage_vl_vision"
    if config.gate_config != GateConfig():
        tree[_GATE_TABLE] = gate
    return {
        "architectures": ["MageVLForConditionalGeneration"],
        "model_type": "mage_vl",
        "dtype": "bfloat16",
        **tree,
    }


def _check(path: Path, config: MageConfig) -> None:
    vision, text, gate, image = (
        config.vision_config,
        config.text_config,
        config.gate_config,
        config.image_config,
    )
    faults: list[tuple[bool, str]] = [
        (vision.use_head, "vision_config.use_head is not served"),
        (vision.use_patch_position_encoding, "vision_config.use_patch_position_encoding is not served"),
        (vision.layer_norm_type != "layer_norm", f"layer_norm_type {vision.layer_norm_type!r} is not served"),
        (vision.hidden_act != "gelu", f"vision_config.hidden_act {vision.hidden_act!r} is not served"),
        (vision.temporal_patch_size != 1, "vision_config.temporal_patch_size is not 1"),
        (
            vision.hidden_size % vision.num_attention_heads != 0 or vision.head_dim % 32 != 0,
            f"vision_config: {vision.hidden_size} in {vision.num_attention_heads} heads do not part 4:6:6",
        ),
        (
            vision.out_hidden_size != text.hidden_size,
            f"vision_config.out_hidden_size {vision.out_hidden_size} is not the decoder's {text.hidden_size}",
        ),
        (
            gate.hidden_size != vision.out_hidden_size,
            f"the gate's hidden_size {gate.hidden_size} is not the merger's {vision.out_hidden_size}",
        ),
        (
            (image.patch_size, image.merge_size, image.temporal_patch_size)
            != (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size),
            "preprocessor_config.json has other patch_size, merge_size or temporal_patch_size",
        ),
        (min(image.image_std) <= 0, "preprocessor_config.json: image_std is not positive"),
    ]
    for at, heads in (("text_config", text), (_GATE_TABLE, gate)):
        odd = heads.num_attention_heads % heads.num_key_value_heads != 0
        faults.append((odd, f"{at}: num_attention_heads is no multiple of num_key_value_heads"))
    for fault, words in faults:
        if fault:
            raise _bad(f"{path}: {words}")


def _with_rope(path: Path, text: dict[str, Any]) -> dict[str, Any]:
    """`rope_theta` may stand alone (older files) or in `rope_parameters`."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise _bad(f"{path}: text_config.rope_parameters is no table")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or "mrope_section" in rope:
        raise _bad(f"{path}: text_config: rope of type {kind!r} is not served, only plain rope")
    theta = rope.get("rope_theta", text.get("rope_theta"))
    return text if theta is None else {**text, "rope_theta": theta}


def _image_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """Newer files say `size.shortest_edge` and `size.longest_edge`, in pixels of area, for the two limits."""
    size = tree.get("size")
    if isinstance(size, dict):
        for key, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            tree.setdefault(key, size.get(edge))
    return {key: value for key, value in tree.items() if value is not None}


def _ends(folder: Path, tree: dict[str, Any]) -> list[int]:
    """Tokens that end an answer: `generation_config.json` says them, else `config.json`."""
    generation = folder / "generation_config.json"
    found = _tree(generation).get("eos_token_id") if generation.is_file() else None
    if found is None:
        found = tree.get("eos_token_id")
    if found is None and isinstance(text := tree.get("text_config"), dict):
        found = text.get("eos_token_id")
    if found is None:
        return list(MageConfig().eos_token_ids)
    return found if isinstance(found, list) else [found]


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = _without_nulls(msgspec.json.decode(path.read_bytes()))
    except FileNotFoundError as error:
        raise _bad(f"there is no {path}") from error
    except msgspec.DecodeError as error:
        raise _bad(f"{path} is no JSON: {error}") from error
    if not isinstance(tree, dict):
        raise _bad(f"{path} is no JSON object")
    return tree


def _convert(path: Path, tree: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise _bad(f"{path} does not describe a Mage-VL checkpoint: {error}") from error


def _without_nulls(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: _without_nulls(value) for name, value in found.items() if value is not None}


def _bad(message: str) -> DuplexError:
    return DuplexError(ErrorCode.BAD_CONFIG, message, param="model")
