"""The cognition gate, stepped: each frame of a session costs the same, however long the session is.

Confirmed by public sources (the gate's published code as ports quote it): the mean over a frame's visual
tokens, a matrix and LeakyReLU, then norm, Mamba and residual, a norm, LeakyReLU and a matrix, and a Qwen3 of
two tokens. Mamba's state (the last 3 inputs of its convolution, and 16 numbers a channel) is the whole memory
of the session, so that frames fed one by one give what the whole history gives.

The Qwen3 is asked about pairs [frame, start or speech], and read at the first of the pair. It looks only
back, so the second token changes nothing; and a token that sees itself alone attends to itself with weight
one, whatever its query, its key and its position are. What is left of a layer's attention is v and o, worked
out here without the rest; o is summed over the heads that share a v. The result is the same but for rounding.

All in float32: in bfloat16 decisions near 0.5 flip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from duplex.adapters.mage_vl.config import GateConfig
from duplex.adapters.mage_vl.layout import CLASSIFIER, MIXER
from duplex.core.errors import DuplexError, ErrorCode


@dataclass(slots=True, eq=False)
class GateState:
    """What the gate remembers of one session: 389 KB at the published size. Dropping it frees it.

    `memory`: float32 (3 + 16, channels): the convolution's last inputs, oldest first, then the state.
    `frames`: how many it has seen.
    """

    memory: Tensor
    frames: int = 0


Segment: TypeAlias = tuple[Tensor, GateState]
"""Visual tokens (n, P, hidden), of n frames in order, and the state of their session."""


class _Layer(NamedTuple):
    norm1: Tensor
    value: Tensor
    output: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class Gate:
    """The gate of one checkpoint, on one device. Not changed by use, but for the states it is given."""

    def __init__(self, config: GateConfig, weights: Mapping[str, Tensor]) -> None:
        """`weights`: by the gate file's names (`layout.gate_layout`), on one device; other dtypes are
        widened. `cls_net.cls_model.model.embed_tokens` and the classifier's q and k are not looked at."""
        self.config = config

        def tensor(name: str) -> Tensor:
            return weights[name].float()

        self.device = weights["pre_net.fc3.weight"].device
        self._pre = tensor("pre_net.fc3.weight"), tensor("pre_net.fc3.bias")
        self._post = tensor("post_net.fc3.weight"), tensor("post_net.fc3.bias")
        self._norm = tensor("mamba_model.ssms.0.norm.weight"), tensor("mamba_model.ssms.0.norm.bias")
        self._norm_fn = tensor("mamba_model.norm_fn.weight"), tensor("mamba_model.norm_fn.bias")
        self._in, self._out = tensor(f"{MIXER}in_proj.weight"), tensor(f"{MIXER}out_proj.weight")
        self._taps = tensor(f"{MIXER}conv1d.weight")[:, 0].T.contiguous()  # (taps, channels), oldest first
        self._taps_bias = tensor(f"{MIXER}conv1d.bias")
        self._x = tensor(f"{MIXER}x_proj.weight")
        self._dt = tensor(f"{MIXER}dt_proj.weight"), tensor(f"{MIXER}dt_proj.bias")
        self._rate = -tensor(f"{MIXER}A_log").exp().T.contiguous()  # (state, channels)
        self._skip = tensor(f"{MIXER}D")
        self._layers = tuple(
            self._layer(f"{CLASSIFIER}model.layers.{layer}.", weights)
            for layer in range(config.num_hidden_layers)
        )
        self._last = tensor(f"{CLASSIFIER}model.norm.weight")
        self._head = tensor(f"{CLASSIFIER}lm_head.weight")

    def new_state(self) -> GateState:
        """Of a session that has seen nothing."""
        rows = self.config.conv_kernel - 1 + self.config.state_size
        return GateState(torch.zeros(rows, self.config.inner_size, device=self.device))

    def step(self, segments: Sequence[Segment], *, last_only: bool = False) -> list[Tensor]:
        """Feed each session its next frames and move its state on: the probabilities that the model should
        speak, float32 (n,) for each segment, one a frame. A segment's decision is its last frame's.

        Sessions may differ in frames and in tokens a frame. With `last_only` only the last frame of each is
        judged, (1,): for many sessions most of the work is in judging. When it raises, no state has moved.

        Raises:
            DuplexError: `INVALID_MEDIA`: no frame or token, or tokens of another width.
            ValueError: a state that comes twice.
        """
        states = [state for _, state in segments]
        if len({id(state) for state in states}) != len(states):
            raise ValueError("a session can be stepped once at a time")
        for tokens, _ in segments:
            if tokens.ndim != 3 or tokens.shape[2] != self.config.hidden_size or 0 in tokens.shape:
                raise DuplexError(
                    ErrorCode.INVALID_MEDIA,
                    f"the gate takes tokens of shape (frames, tokens, {self.config.hidden_size}), none empty;"
                    f" these have {tuple(tokens.shape)}",
                    param="tokens",
                )
        if not segments:
            return []
        with torch.inference_mode():
            return self._step(segments, last_only)

    def _step(self, segments: Sequence[Segment], last_only: bool) -> list[Tensor]:
        states = [state for _, state in segments]
        plan = _plan(tuple(len(tokens) for tokens, _ in segments), self.config.conv_kernel)
        rows = plan.order, plan.inputs, plan.kept, plan.ends, plan.places if last_only else plan.back
        order, inputs, kept, ends, back = torch.split(
            self._upload([at for each in rows for at in each]), [len(each) for each in rows]
        )
        frames = torch.cat([tokens.mean(1, dtype=torch.float32) for tokens, _ in segments])[order]
        memory = torch.stack([states[session].memory for session in plan.sessions])
        seen, memory = self._perceive(frames, memory, plan.active, inputs, kept, ends)
        judged = self._judge(seen[ends] if last_only else seen)[back]
        torch._foreach_copy_([states[session].memory for session in plan.sessions], list(memory.unbind()))
        for (tokens, _), state in zip(segments, states, strict=True):
            state.frames += len(tokens)
        return list(torch.split(judged, [1 if last_only else len(tokens) for tokens, _ in segments]))

    def _upload(self, index: Sequence[int]) -> Tensor:
        """Without a wait for the device, which may have an encoder's work before it."""
        held = torch.tensor(index, pin_memory=self.device.type == "cuda")
        return held.to(self.device, non_blocking=True)

    def _perceive(
        self,
        frames: Tensor,
        memory: Tensor,
        active: Sequence[int],
        inputs: Tensor,
        kept: Tensor,
        ends: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What each frame means to its session: (F, hidden), and the sessions' new memories. Frames come by
        time, sessions with more frames first."""
        config = self.config
        width, taps = (config.hidden_size,), config.conv_kernel
        hidden = F.leaky_relu(F.linear(frames, *self._pre))
        normed = F.layer_norm(hidden, width, *self._norm, config.layer_norm_eps)
        u, z = F.linear(normed, self._in).chunk(2, dim=1)
        # what each convolution has before its first frame, and then the frames
        line = torch.cat([memory[:, : taps - 1].flatten(0, 1), u])
        u = F.silu((line[inputs].view(len(u), taps, -1) * self._taps).sum(1) + self._taps_bias)
        rank, size = config.dt_rank, config.state_size
        low, b, c = torch.split(F.linear(u, self._x), [rank, size, size], dim=1)
        step = F.softplus(F.linear(low, *self._dt))
        decay = torch.exp(step[:, None] * self._rate)  # (F, state, channels)
        state = b[:, :, None] * (step * u)[:, None]  # what a frame adds, then the state after it
        before, start = memory[:, taps - 1 :], 0
        for count in active:
            here = state[start : start + count]
            torch.addcmul(here, before[:count], decay[start : start + count], out=here)
            before, start = here, start + count
        read = torch.bmm(c[:, None], state)[:, 0] + self._skip * u
        mixed = F.linear(read * F.silu(z), self._out) + hidden
        seen = F.layer_norm(mixed, width, *self._norm_fn, config.layer_norm_eps)
        recent = line[kept].view(len(memory), taps - 1, -1)
        return F.linear(F.leaky_relu(seen), *self._post), torch.cat([recent, state[ends]], dim=1)

    def _judge(self, hidden: Tensor) -> Tensor:
        """(F, hidden) to probabilities (F,)."""
        width, eps = (self.config.hidden_size,), self.config.rms_norm_eps
        for layer in self._layers:
            value = F.linear(F.rms_norm(hidden, width, layer.norm1, eps), layer.value)
            hidden = hidden + F.linear(value, layer.output)
            gate, up = F.linear(F.rms_norm(hidden, width, layer.norm2, eps), layer.gate_up).chunk(2, dim=1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        logits = F.linear(F.rms_norm(hidden, width, self._last, eps), self._head)
        return logits.softmax(1)[:, 1]

    def _layer(self, at: str, weights: Mapping[str, Tensor]) -> _Layer:
        config = self.config
        shared = config.num_attention_heads // config.num_key_value_heads
        output = weights[f"{at}self_attn.o_proj.weight"].double()
        by_head = output.view(config.hidden_size, config.num_key_value_heads, shared, config.head_dim)
        return _Layer(
            norm1=weights[f"{at}input_layernorm.weight"].float(),
            value=weights[f"{at}self_attn.v_proj.weight"].float(),
            output=by_head.sum(2).flatten(1).float(),
            norm2=weights[f"{at}post_attention_layernorm.weight"].float(),
            gate_up=torch.cat(
                [weights[f"{at}mlp.gate_proj.weight"], weights[f"{at}mlp.up_proj.weight"]]
            ).float(),
            down=weights[f"{at}mlp.down_proj.weight"].float(),
        )


class _Plan(NamedTuple):
    """How frames of sessions with different numbers of them are laid out: by time, and at each time the
    sessions that have a frame then, those with more frames first. So each time is one slice.

    `sessions`: the sessions in that order; `active`: sessions of each time. The rest are rows: `order` of the
    frames as they came, to lay them out; `inputs` of the line (each session's remembered inputs, then the
    frames) that each frame's convolution takes; `kept` of the line that are to be remembered; `ends` of each
    session's last frame; `back` of each frame, to put results as the frames came, and `places` of each
    session in `sessions`, to put those of last frames so.
    """

    sessions: Sequence[int]
    active: Sequence[int]
    order: Sequence[int]
    inputs: Sequence[int]
    kept: Sequence[int]
    ends: Sequence[int]
    back: Sequence[int]
    places: Sequence[int]


@lru_cache(maxsize=256)
def _plan(lengths: tuple[int, ...], taps: int) -> _Plan:
    sessions = sorted(range(len(lengths)), key=lambda session: -lengths[session])
    active = [sum(length > time for length in lengths) for time in range(max(lengths))]
    starts = [sum(active[:time]) for time in range(len(active))]
    firsts = [sum(lengths[:session]) for session in range(len(lengths))]
    remembered = len(lengths) * (taps - 1)

    def row(place: int, time: int) -> int:
        """Of the line: the input of the session in this place at a time; before 0 it is remembered."""
        return remembered + starts[time] + place if time >= 0 else (place + 1) * (taps - 1) + time

    order, inputs = [], []
    for time, count in enumerate(active):
        for place in range(count):
            order.append(firsts[sessions[place]] + time)
            inputs += [row(place, at) for at in range(time - taps + 1, time + 1)]
    kept = [
        row(place, at)
        for place, session in enumerate(sessions)
        for at in range(lengths[session] - taps + 1, lengths[session])
    ]
    ends = [starts[lengths[session] - 1] + place for place, session in enumerate(sessions)]
    back = sorted(range(len(order)), key=order.__getitem__)
    places = sorted(range(len(sessions)), key=sessions.__getitem__)
    return _Plan(sessions, active, order, inputs, kept, ends, back, places)
