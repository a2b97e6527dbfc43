"""The other implementations of Qwen3-TTS, each in a process of its own with its own packages.

    python benchmarks/tts_gpu_peers.py qwen-tts|faster-qwen3-tts SPEC.json > RESULTS.jsonl

Both get a model that is built from its configuration with random weights: nothing is fetched. Modules that
only the 25 Hz tokenizer or voice cloning need are replaced by empty ones when they are not there. The row of
the end code is zero, so that its logit is never among the largest and an utterance has the length that is
asked for. Each measurement is a line of its own, so that a fault later on loses nothing.

* `qwen-tts` makes a whole utterance and then its audio: its first sound is there when all of it is.
* `faster-qwen3-tts` streams: `chunk_frames` 1 is the soonest it can be, 12 is its default.

On a machine without CUDA (to try this program, not to measure) its two graphs are replaced by plain calls.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import statistics
import sys
import time
import types
import zlib
from collections.abc import Callable
from typing import Any

from tts_gpu_common import as_part, tell, time_left
from tts_gpu_sizes import (
    CODEC_EOS,
    FRAME_MS,
    FRAME_SAMPLES,
    LANGUAGE,
    SPEAKER,
    codec_decoder,
    codec_encoder,
    config,
)

os.environ |= {"HF_HUB_OFFLINE": "1", "USE_TORCH": "1", "USE_TF": "0", "USE_FLAX": "0"}
_NOT_USED = (
    *("librosa", "librosa.filters", "sox", "onnxruntime", "soundfile", "einops"),
    *("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"),
)


class _Empty(types.ModuleType):
    """Any name can be imported from it; nothing in it works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{self.__name__}.{name} is not here")

        return missing


def stand_ins() -> None:
    """Modules that the 12 Hz custom-voice path imports and never calls. torchaudio and librosa are always
    replaced: importing them takes seconds, and a build for another torch does not load at all.

    transformers comes first, so that it finds no stand-in and takes it for the real thing.
    """
    from transformers import AutoFeatureExtractor, AutoModel, AutoProcessor  # noqa: F401

    for name in _NOT_USED:
        root = name.partition(".")[0]
        if root not in ("torchaudio", "librosa") and importlib.util.find_spec(root) is not None:
            continue
        module = _Empty(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class Words:
    """In place of the text tokenizer: one id a word, which costs nothing."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        inner = text.removeprefix("<|im_start|>assistant\n").split("<|im_end|>")[0]
        ids = [1000 + zlib.crc32(word.encode()) % 100000 for word in inner.split()]
        return {"input_ids": torch.tensor([[151644, 77091, 198, *ids, 151645, 198, 151644, 77091, 198]])}


def build(orders: dict[str, Any]) -> Any:
    """`qwen_tts.Qwen3TTSModel` of that size on the device."""
    import torch

    stand_ins()
    from qwen_tts import Qwen3TTSModel, Qwen3TTSTokenizer
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    size, device = orders["size"], orders["device"]
    fields = config(size)
    for unwanted in ("architectures", "model_type", "assistant_token_id"):
        fields.pop(unwanted)
    codec_config = Qwen3TTSTokenizerV2Config(
        encoder_config=codec_encoder(size), decoder_config=codec_decoder(size)
    )
    keep_rotations()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**fields)).eval()
            codec = Qwen3TTSTokenizerV2Model(codec_config).eval()
    finally:
        torch.set_default_dtype(before)
    randomise(model)
    randomise(codec)
    model.talker.codec_head.weight[CODEC_EOS].zero_()
    tokenizer = Qwen3TTSTokenizer()
    tokenizer.model, tokenizer.config, tokenizer.device = codec, codec.config, torch.device(device)
    model.load_speech_tokenizer(tokenizer)
    model.load_generate_config({})
    return Qwen3TTSModel(model, Words(), {})


def keep_rotations() -> None:
    """Let the build for transformers 5 make a codec from its configuration: there `rope_theta` is in
    `rope_parameters`, which it only expects of loaded checkpoints."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    make = ROPE_INIT_FUNCTIONS.get("default")

    def default(config: Any, *rest: Any, **named: Any) -> Any:
        if not hasattr(config, "rope_theta"):
            config.rope_theta = config.rope_parameters["rope_theta"]
        return make(config, *rest, **named)

    if make is not None:
        ROPE_INIT_FUNCTIONS["default"] = default


def randomise(model: Any) -> None:
    """Matrices of zeros are faster than real ones: no parameter or codebook is left at zero. Rotary
    frequencies are made again in float32, as loading a checkpoint does."""
    import torch

    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "inv_freq" in name or not tensor.is_floating_point():
            continue
        if "cluster_usage" in name:
            tensor.fill_(1.0)
        elif tensor.dim() >= 2:
            tensor.normal_(0.0, 0.02)
    for module in model.modules():
        if all(hasattr(module, name) for name in ("rope_init_fn", "config", "inv_freq")):
            frequencies, _ = module.rope_init_fn(module.config, module.inv_freq.device)
            module.register_buffer("inv_freq", frequencies.to(torch.float32), persistent=False)
            module.original_inv_freq = module.inv_freq


def clock(device: str) -> Callable[[], float]:
    """Milliseconds, once the device has done what it was given."""
    import torch

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() * 1000

    return now


def versions() -> dict[str, str]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__}


def qwen_tts(orders: dict[str, Any]) -> None:
    """The reference package's own loop: whole utterances, and within them the frames alone."""
    import torch

    left = time_left(orders["budget_s"])
    model = build(orders)
    now = clock(orders["device"])
    attention = model.model.talker.model.config._attn_implementation
    tell("built", attention=attention, **versions())
    loop_ms: list[float] = []
    frames: list[int] = []
    generate = model.model.generate

    def timed(**options: Any) -> Any:
        began = now()
        codes, hidden = generate(**options)
        loop_ms.append(now() - began)
        frames.append(codes[0].shape[0])
        return codes, hidden

    model.model.generate = timed

    def say(count: int) -> float:
        began = now()
        audio, _ = model.generate_custom_voice(
            orders["text"], speaker=SPEAKER, language=LANGUAGE, max_new_tokens=count + 1
        )  # the last token that it draws is dropped
        assert len(audio[0]) == count * FRAME_SAMPLES
        return now() - began

    for _ in range(2):
        say(min(8, orders["frames"]))
    loop_ms.clear()
    frames.clear()
    whole_ms: list[float] = []
    while len(whole_ms) < orders["rounds"] and (left() > 0 or not whole_ms):
        whole_ms.append(say(orders["frames"]))
        memory = torch.cuda.max_memory_allocated() if orders["device"] != "cpu" else 0
        tell(
            "utterance",
            rounds=len(whole_ms),
            frames=frames[-1],
            frame_ms=statistics.median(ms / n for ms, n in zip(loop_ms, frames, strict=True)),
            first_audio_ms=statistics.median(whole_ms),
            real_time=frames[-1] * FRAME_MS / statistics.median(whole_ms),
            memory_bytes=memory,
        )


def without_graphs(talker_graph: Any, predictor_graph: Any) -> None:
    """The two graphs as plain calls, for machines without CUDA."""

    def prepare_talker(**_: Any) -> None:
        talker_graph._init_cache_layers()
        talker_graph._build_attention_masks()

    def talker(inputs: Any, position: int) -> Any:
        talker_graph.input_buf.copy_(inputs)
        talker_graph.cache_position[0] = position
        talker_graph._set_attention_mask(position)
        delta = talker_graph.rope_deltas + talker_graph.cache_position[0].to(talker_graph.rope_deltas.dtype)
        talker_graph.position_ids.copy_(delta.unsqueeze(0).expand(3, -1, -1))
        talker_graph._decode_step()
        return talker_graph.output_buf

    def prepare_predictor(**_: Any) -> None:
        predictor_graph._init_cache_layers()
        predictor_graph._build_attention_masks()

    def predictor(inputs: Any) -> Any:
        predictor_graph.input_buf.copy_(inputs)
        predictor_graph.static_cache.reset()
        return predictor_graph._full_loop().clone()

    talker_graph.capture, talker_graph.run = prepare_talker, talker
    predictor_graph.capture, predictor_graph.run = prepare_predictor, predictor


def faster(orders: dict[str, Any]) -> None:
    """The package with CUDA graphs: its streaming path at several chunk sizes."""
    import torch

    left = time_left(orders["budget_s"])
    device = orders["device"]
    if device == "cpu":
        torch.cuda.current_device = lambda: 0
        torch.cuda.synchronize = lambda *_: None
    base = build(orders)
    from faster_qwen3_tts.model import FasterQwen3TTS
    from faster_qwen3_tts.predictor_graph import PredictorGraph
    from faster_qwen3_tts.talker_graph import TalkerGraph

    talker = base.model.talker
    fields = {"device": device, "dtype": torch.bfloat16}
    predictor_graph = PredictorGraph(
        talker.code_predictor,
        talker.code_predictor.model.config,
        base.model.config.talker_config.hidden_size,
        do_sample=True,
        top_k=50,
        temperature=0.9,
        **fields,
    )
    # room for prompt and utterance: its masks are a table of one row a position
    talker_graph = TalkerGraph(
        talker.model, base.model.config.talker_config, max_seq_len=orders["positions"], **fields
    )
    if device == "cpu":
        without_graphs(talker_graph, predictor_graph)
    model = FasterQwen3TTS(base, predictor_graph, talker_graph, max_seq_len=orders["positions"], **fields)
    tell("built", attention=talker.model.config._attn_implementation, **versions())
    now = clock(device)

    def stream(chunk: int, count: int) -> tuple[float, float, int, float]:
        """ms to the first chunk and to the end, samples, and ms of the frame loop."""
        began = now()
        first, samples, loop = 0.0, 0, 0.0
        for audio, _, timing in model.generate_custom_voice_streaming(
            orders["text"], speaker=SPEAKER, language=LANGUAGE, chunk_size=chunk, max_new_tokens=count
        ):
            first = first or now() - began
            samples += len(audio)
            loop += timing["decode_ms"]
        return first, now() - began, samples, loop

    began = now()
    stream(4, 8)
    tell("captured", capture_s=(now() - began) / 1000)
    for chunk in orders["chunk_frames"]:
        count = orders["frames"]
        stream(chunk, min(count, 2 * chunk))
        firsts: list[float] = []
        totals: list[float] = []
        loops: list[float] = []
        while len(firsts) < orders["rounds"] and (left() > 0 or not firsts):
            first, total, samples, loop = stream(chunk, count)
            assert samples > 0
            firsts.append(first)
            totals.append(total)
            loops.append(loop)
            tell(
                "stream",
                chunk_frames=chunk,
                rounds=len(firsts),
                frames=count,
                frame_ms=statistics.median(loops) / count,
                first_audio_ms=statistics.median(firsts),
                real_time=count * FRAME_MS / statistics.median(totals),
                memory_bytes=torch.cuda.max_memory_allocated() if device != "cpu" else 0,
            )


PEERS: dict[str, Callable[[dict[str, Any]], None]] = {"qwen-tts": qwen_tts, "faster-qwen3-tts": faster}

if __name__ == "__main__":
    PEERS[sys.argv[1]](as_part())
