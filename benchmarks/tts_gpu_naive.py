"""Talker and code predictor with PyTorch's own operators, a whole frame in one CUDA graph: what a frame costs
without kernels of its own. Greedy, no repetition penalty, random weights; the same sizes as the model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from tts_gpu_sizes import decoder, predictor

CODES, GROUPS, HEAD0 = 2048, 16, 3072


class NaiveLayer:
    """One decoder layer, x (b, 1, h), with a static cache."""

    def __init__(self, sizes: dict[str, int], device: str, dtype: torch.dtype) -> None:
        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) * 0.02

        hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads, self.kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        self.size = sizes["head_dim"]
        self.qkv = matrix((self.heads + 2 * self.kv_heads) * self.size, hidden)
        self.o = matrix(hidden, self.heads * self.size)
        self.gate_up, self.down = matrix(2 * inner, hidden), matrix(hidden, inner)
        self.norm = torch.ones(hidden, device=device, dtype=dtype)

    def new_cache(self, batch: int, positions: int) -> None:
        shape = (batch, self.kv_heads, positions, self.size)
        self.keys = torch.randn(shape, device=self.o.device, dtype=self.o.dtype)
        self.values = torch.randn_like(self.keys)

    def __call__(self, x: Tensor, position: Tensor, length: int) -> Tensor:
        batch, width = x.shape[0], x.shape[-1]
        parts = (self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size)
        q, k, v = F.linear(F.rms_norm(x, (width,), self.norm), self.qkv).split(parts, -1)
        q, k, v = (part.view(batch, 1, -1, self.size).transpose(1, 2) for part in (q, k, v))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(
            q, self.keys[:, :, :length], self.values[:, :, :length], enable_gqa=True
        )
        x = x + F.linear(attended.transpose(1, 2).reshape(batch, 1, -1), self.o)
        gate, up = F.linear(F.rms_norm(x, (width,), self.norm), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class NaiveLoop:
    """Weights once; caches and graph for each batch."""

    def __init__(self, size: str, device: str, cached: int) -> None:
        self.device, self.cached = device, cached
        self.dtype = torch.bfloat16 if device != "cpu" else torch.float32

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, device=device, dtype=self.dtype) * 0.02

        talker, small = decoder(size), predictor(size)
        self.hidden, inner = talker["hidden_size"], small["hidden_size"]
        self.talker = [NaiveLayer(talker, device, self.dtype) for _ in range(talker["num_hidden_layers"])]
        self.predictor = [NaiveLayer(small, device, self.dtype) for _ in range(small["num_hidden_layers"])]
        self.head = matrix(HEAD0, self.hidden)
        self.heads = [matrix(CODES, inner) for _ in range(GROUPS - 1)]
        self.tables = [matrix(CODES, self.hidden) for _ in range(GROUPS)]
        self.projection = matrix(inner, self.hidden) if inner != self.hidden else None
        self.position = torch.tensor([cached // 2], device=device)
        self.steps = [torch.tensor([step], device=device) for step in range(GROUPS + 1)]

    def _predict(self, x: Tensor, step: int) -> Tensor:
        y = x if self.projection is None else F.linear(x, self.projection)
        for layer in self.predictor:
            y = layer(y, self.steps[step], step + 1)
        return y

    def _frame(self, x: Tensor) -> None:
        hidden = x
        for layer in self.talker:
            hidden = layer(hidden, self.position, self.cached)
        code = F.linear(hidden, self.head).argmax(-1) % CODES
        embedded = self.tables[0][code]
        total = embedded
        self._predict(hidden, 0)
        for group in range(1, GROUPS):
            code = F.linear(self._predict(embedded, group), self.heads[group - 1]).argmax(-1)
            embedded = self.tables[group][code]
            total = total + embedded
        x.copy_(total)

    def frame_ms(self, batch: int, frames: int) -> float:
        """Median of five means of `frames` frames."""
        for layer in self.talker:
            layer.new_cache(batch, self.cached)
        for layer in self.predictor:
            layer.new_cache(batch, GROUPS + 1)
        x = torch.randn(batch, 1, self.hidden, device=self.device, dtype=self.dtype)
        if self.device == "cpu":
            return _timed(lambda: self._frame(x), frames)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._frame(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._frame(x)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        means = []
        for _ in range(6):
            begin.record()
            for _ in range(frames):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            means.append(begin.elapsed_time(end) / frames)
        del graph
        return statistics.median(means[1:])


def _timed(step: Callable[[], None], frames: int) -> float:
    step()
    began = time.perf_counter()
    for _ in range(frames):
        step()
    return (time.perf_counter() - began) * 1000 / frames
