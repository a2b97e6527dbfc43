"""Mage-VL, straightforwardly: what the parity tests compare with.

Modules named as the checkpoint's tensors are, full history, no state, no batching: windows and frames one by
one, the gate's classifier and the decoder by transformers. Written without a look at the product's own code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """One window: (L, width), angles (L, d)."""
        width = x.shape[1]
        queries, keys, values = self.qkv(x).split(width, dim=1)
        out = torch.empty_like(x)
        d = width // self.heads
        for head in range(self.heads):
            lanes = slice(head * d, (head + 1) * d)
            q, k = turn(queries[:, lanes], angles), turn(keys[:, lanes], angles)
            scores = (q @ k.T) / math.sqrt(d)
            out[:, lanes] = scores.softmax(-1) @ values[:, lanes]
        return self.proj(out)


def turn(x: Tensor, angles: Tensor) -> Tensor:
    turned = torch.empty_like(x)
    for lane in range(0, x.shape[1], 2):
        a, b = x[:, lane], x[:, lane + 1]
        turned[:, lane] = a * angles[:, lane].cos() - b * angles[:, lane].sin()
        turned[:, lane + 1] = b * angles[:, lane + 1].cos() + a * angles[:, lane + 1].sin()
    return turned


def angles_of(positions: Tensor, d: int, theta: float) -> Tensor:
    """(L, d)."""
    unit = d // 32
    rows = []
    for t, row, column in positions.tolist():
        half = []
        for place, size in ((t, 4 * unit), (row, 6 * unit), (column, 6 * unit)):
            half += [place / theta ** (i / size) for i in range(size)]
        rows.append(half + half)
    return torch.tensor(rows, dtype=torch.float32)


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class VisionLayer(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.self_attn = Attention(c.hidden_size, c.num_attention_heads)
        self.layer_norm2 = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.mlp = Mlp(c.hidden_size, c.intermediate_size)


class Merger(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        wide = c.hidden_size * c.spatial_merge_size**2
        self.ln_q = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.mlp = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, c.out_hidden_size))


class Visual(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.c = c
        self.embeddings = nn.Module()
        self.embeddings.patch_embedding = nn.Conv2d(
            c.num_channels, c.hidden_size, c.patch_size, c.patch_size, bias=False
        )
        self.layernorm_pre = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(VisionLayer(c) for _ in range(c.num_hidden_layers))
        self.merger = Merger(c)

    def forward(self, pixels: Tensor, grid: Sequence[Sequence[int]], positions: Tensor) -> Tensor:
        tokens, at = [], 0
        for time, rows, columns in grid:
            for first in range(0, time, self.c.frame_windows_size):
                steps = min(self.c.frame_windows_size, time - first)
                here = slice(at, at + steps * rows * columns)
                tokens.append(self.window(pixels[here], positions[here]))
                at = here.stop
        return torch.cat(tokens)

    def window(self, pixels: Tensor, positions: Tensor) -> Tensor:
        c = self.c
        squares = pixels.view(-1, c.num_channels, c.patch_size, c.patch_size)
        x = self.layernorm_pre(self.embeddings.patch_embedding(squares).flatten(1))
        angles = angles_of(positions, c.hidden_size // c.num_attention_heads, c.rope_theta)
        for layer in self.encoder.layers:
            x = x + layer.self_attn(layer.layer_norm1(x), angles)
            x = x + layer.mlp(layer.layer_norm2(x))
        x = self.merger.ln_q(x)
        four = c.spatial_merge_size**2
        return self.merger.mlp(torch.stack([x[i : i + four].flatten() for i in range(0, len(x), four)]))


class Mixer(nn.Module):
    """Mamba, over the whole of a sequence."""

    def __init__(self, g: SimpleNamespace) -> None:
        super().__init__()
        inner = g.expand * g.hidden_size
        self.g, self.inner = g, inner
        self.in_proj = nn.Linear(g.hidden_size, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, g.conv_kernel, groups=inner, padding=g.conv_kernel - 1)
        self.x_proj = nn.Linear(inner, g.dt_rank + 2 * g.state_size, bias=False)
        self.dt_proj = nn.Linear(g.dt_rank, inner)
        self.A_log = nn.Parameter(torch.zeros(inner, g.state_size))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, g.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        frames = len(x)
        u, z = self.in_proj(x).split(self.inner, dim=1)
        u = nn.functional.silu(self.conv1d(u.T[None])[0, :, :frames].T)
        outputs = []
        h = torch.zeros(self.inner, self.g.state_size)
        for frame in range(frames):
            step, b, c = self.x_proj(u[frame]).split([self.g.dt_rank, self.g.state_size, self.g.state_size])
            delta = nn.functional.softplus(self.dt_proj(step))
            decay = torch.exp(torch.outer(delta, torch.ones(len(b))) * -torch.exp(self.A_log))
            h = decay * h + torch.outer(delta * u[frame], b)
            outputs.append((h @ c + self.D * u[frame]) * nn.functional.silu(z[frame]))
        return self.out_proj(torch.stack(outputs))


class Gate(nn.Module):
    def __init__(self, g: SimpleNamespace) -> None:
        super().__init__()
        width = g.hidden_size
        self.pre_net, self.post_net = nn.Module(), nn.Module()
        self.pre_net.fc3, self.post_net.fc3 = nn.Linear(width, width), nn.Linear(width, width)
        self.mamba_model = nn.Module()
        block = nn.Module()
        block.norm, block.mixer = nn.LayerNorm(width), Mixer(g)
        self.mamba_model.ssms = nn.ModuleList([block])
        self.mamba_model.norm_fn = nn.LayerNorm(width)
        self.cls_net = nn.Module()
        self.cls_net.cls_model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=2,
                hidden_size=width,
                num_hidden_layers=g.num_hidden_layers,
                num_attention_heads=g.num_attention_heads,
                num_key_value_heads=g.num_key_value_heads,
                intermediate_size=g.intermediate_size,
                head_dim=g.head_dim,
                max_position_embeddings=8192,
                rms_norm_eps=1e-6,
                tie_word_embeddings=False,
                attention_bias=False,
            )
        )

    def logits(self, tokens: Tensor, boundaries: Sequence[int] = ()) -> Tensor:
        """(T, P, h) visual tokens of a whole stream to (T, 2). `boundaries`: ends of segments, counted in
        frames, whose second token is that of speech in training."""
        x = nn.functional.leaky_relu(self.pre_net.fc3(tokens.float().mean(1)))
        block = self.mamba_model.ssms[0]
        x = self.mamba_model.norm_fn(block.mixer(block.norm(x)) + x)
        x = self.post_net.fc3(nn.functional.leaky_relu(x))
        ids = torch.zeros(len(x), dtype=torch.long)
        ids[[end - 1 for end in boundaries]] = 1
        target = self.cls_net.cls_model.model.embed_tokens(ids)
        out = self.cls_net.cls_model(inputs_embeds=torch.stack([x, target], dim=1))
        return out.logits[:, 0]

    def forward(self, tokens: Tensor, boundaries: Sequence[int] = ()) -> Tensor:
        """(T,): p_speak of each frame."""
        return self.logits(tokens, boundaries).softmax(-1)[:, 1]


class Reference(nn.Module):
    """`model.visual`, `model.language_model`, `lm_head`; and `gate`, whose file is another."""

    def __init__(self, tree: dict[str, Any]) -> None:
        super().__init__()
        self.tree = tree
        text = dict(tree["text_config"])
        text.pop("model_type", None)
        config = Qwen3Config(**text)
        self.model = nn.Module()
        self.model.visual = Visual(SimpleNamespace(**tree["vision_config"]))
        self.model.language_model = Qwen3Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def merged(self, ids: Sequence[int], visual: Tensor | None) -> Tensor:
        """(1, L, h): embeddings of a prompt, visual tokens in the places of the image token."""
        embeds = self.model.language_model.embed_tokens(torch.tensor([list(ids)]))
        places = [i for i, token in enumerate(ids) if token == self.tree["image_token_id"]]
        assert len(places) == (0 if visual is None else len(visual))
        for index, place in enumerate(places):
            assert visual is not None
            embeds[0, place] = visual[index]
        return embeds

    def greedy(self, embeds: Tensor, count: int) -> list[int]:
        """The next tokens of a prompt (1, L, h), each from the whole of what is before it."""
        tokens: list[int] = []
        for _ in range(count):
            hidden = self.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
            tokens.append(int(self.lm_head(hidden[0, -1]).argmax()))
            new = self.model.language_model.embed_tokens(torch.tensor([[tokens[-1]]]))
            embeds = torch.cat([embeds, new], dim=1)
        return tokens


def gate_table(tree: dict[str, Any]) -> SimpleNamespace:
    full = {
        "hidden_size": 2560,
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "dt_rank": 160,
        "intermediate_size": 12288,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    return SimpleNamespace(**{**full, **tree.get("streammind_gate_config", {})})


def load_reference(folder: Path) -> tuple[Reference, Gate]:
    """Both of a checkpoint's folder, in float32 on the CPU."""
    tree = json.loads((folder / "config.json").read_text())
    weights: dict[str, Tensor] = {}
    for part in sorted(folder.glob("model*.safetensors")):
        weights |= load_file(part)
    reference, gate = Reference(tree).eval().float(), Gate(gate_table(tree)).eval().float()
    reference.load_state_dict(weights, strict=True)
    gate.load_state_dict(load_file(folder / "streammind_gate.safetensors"), strict=True)
    for module in (reference, gate):
        module.requires_grad_(False)
    return reference, gate


def patches(image: np.ndarray, tree: dict[str, Any]) -> tuple[Tensor, list[list[int]], Tensor]:
    """One image (H, W, 3): pixels, grid, and positions of frame 0, block by block."""
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])
    height, width, _ = image.shape
    x = (torch.from_numpy(image).float() / 255 - mean) / std
    pixels, positions = [], []
    for top in range(0, height, 32):
        for left in range(0, width, 32):
            for down in (0, 16):
                for right in (0, 16):
                    patch = x[top + down : top + down + 16, left + right : left + right + 16]
                    pixels.append(patch.permute(2, 0, 1).flatten())
                    positions.append([0, (top + down) // 16, (left + right) // 16])
    return torch.stack(pixels), [[1, height // 16, width // 16]], torch.tensor(positions)
