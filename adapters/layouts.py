"""Names and shapes of tensors: what checkpoints' layouts have in common, and the comparison with a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, TypeAlias

from duplex.core.errors import DuplexError, ErrorCode

Shape: TypeAlias = tuple[int, ...]
Named: TypeAlias = Iterator[tuple[str, Shape]]

_TOLD = 3  # tensors named of each kind of fault


class Heads(Protocol):
    """The dimensions of an attention."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class Qwen3Dimensions(Heads, Protocol):
    """The dimensions of a Qwen3 decoder."""

    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...


def parameters(layout: Mapping[str, Shape]) -> int:
    """How many numbers the tensors hold together."""
    return sum(math.prod(shape) for shape in layout.values())


def compare(
    wanted: Mapping[str, Shape],
    found: Mapping[str, Shape],
    what: str,
    *,
    spare: Collection[str] = (),
    ignored: tuple[str, ...] = (),
) -> None:
    """Compare the tensors of a file with those that its configuration asks for.

    `what` they are of, in the error's words. `spare` ones may be missing, and those whose names end with one
    of `ignored` are not looked at.

    Raises:
        DuplexError: `BAD_CONFIG` naming the first tensors that are missing, unexpected or of another shape.
    """
    held = {name: tuple(shape) for name, shape in found.items() if not name.endswith(ignored)}
    misshapen = [
        f"{name} ({_text(held[name])}, not {_text(shape)})"
        for name, shape in wanted.items()
        if name in held and held[name] != shape
    ]
    faults = (
        ("missing", [name for name in wanted if name not in held and name not in spare]),
        ("unexpected", [name for name in held if name not in wanted]),
        ("of another shape", misshapen),
    )
    told = "; ".join(f"{len(names)} {fault}: {_first(names)}" for fault, names in faults if names)
    if told:
        raise DuplexError(
            ErrorCode.BAD_CONFIG,
            f"the weights of the {what} do not fit its configuration: {told}",
            param="model",
        )


def linear(at: str, inputs: int, outputs: int, *, bias: bool = False) -> Named:
    yield f"{at}.weight", (outputs, inputs)
    if bias:
        yield f"{at}.bias", (outputs,)


def attention(at: str, config: Heads) -> Named:
    """Four projections without biases, as Qwen's decoders have them."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    yield from linear(f"{at}.self_attn.q_proj", hidden, queries)
    yield from linear(f"{at}.self_attn.k_proj", hidden, keys)
    yield from linear(f"{at}.self_attn.v_proj", hidden, keys)
    yield from linear(f"{at}.self_attn.o_proj", queries, hidden)


def gated_layer(at: str, hidden: int, inner: int) -> Named:
    """What a decoder's layer has besides the attention: a gated MLP and two norms."""
    yield from linear(f"{at}.mlp.gate_proj", hidden, inner)
    yield from linear(f"{at}.mlp.up_proj", hidden, inner)
    yield from linear(f"{at}.mlp.down_proj", inner, hidden)
    yield f"{at}.input_layernorm.weight", (hidden,)
    yield f"{at}.post_attention_layernorm.weight", (hidden,)


def qwen3_decoder(at: str, config: Qwen3Dimensions) -> Named:
    """Qwen3 layers and the norm after them; `q_norm` and `k_norm` work on one head."""
    for layer in range(config.num_hidden_layers):
        yield from attention(f"{at}.layers.{layer}", config)
        yield f"{at}.layers.{layer}.self_attn.q_norm.weight", (config.head_dim,)
        yield f"{at}.layers.{layer}.self_attn.k_norm.weight", (config.head_dim,)
        yield from gated_layer(f"{at}.layers.{layer}", config.hidden_size, config.intermediate_size)
    yield f"{at}.norm.weight", (config.hidden_size,)


def _first(names: list[str]) -> str:
    return ", ".join(names[:_TOLD]) + (", …" if len(names) > _TOLD else "")


def _text(shape: Shape) -> str:
    return "×".join(map(str, shape))
