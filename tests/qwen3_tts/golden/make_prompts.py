"""Makes `prompts.json`: what the authors' package lays before the talker, in ids.

Run with an environment that has `qwen-tts` 0.1.1 (torchaudio need not be there):

    python make_prompts.py

The package's embeddings are replaced by tables whose vectors tell what was looked up, and the talker's own
`generate` by one that writes its input down. So each row of a prompt is read off exactly: the text id, the
codec id, whether the speaker's embedding is in it, and the frame of the reference.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import reference  # noqa: F401  (lets the package load)
import torch
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
from torch import Tensor, nn

LANGUAGES = {"chinese": 2055, "english": 2050, "beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {"vivian": 3065, "eric": 2875, "dylan": 2878}
DIALECTS: dict[str, Any] = {"vivian": False, "eric": "sichuan_dialect", "dylan": "beijing_dialect"}
TEXT, TEXTS, CODEC, CODECS, SPEAKER, FRAME, CODES = range(7)  # what the places of a vector count
WIDTH = 8
HEAD, TAIL, REFERENCE_TAIL = [151644, 77091, 198], [151645, 198, 151644, 77091, 198], [151645, 198]


class Told(nn.Module):
    """An embedding whose vectors tell the id: `first` + id in `place`, and one in `count`."""

    def __init__(self, place: int, count: int) -> None:
        super().__init__()
        self.place, self.count = place, count

    def forward(self, ids: Tensor) -> Tensor:
        vectors = torch.zeros(*ids.shape, WIDTH, dtype=torch.float64)
        vectors[..., self.place] = ids + 1
        vectors[..., self.count] = 1
        return vectors


class ToldCodec(nn.Module):
    """The talker's own embedding: codes below 2048 are the reference's, the rest control codes."""

    def forward(self, ids: Tensor) -> Tensor:
        frame, control = Told(FRAME, CODES)(ids), Told(CODEC, CODECS)(ids)
        return torch.where((ids < 2048)[..., None], frame, control)


class Caught(Exception):
    """The talker was about to generate."""


def model_of(kind: str) -> Qwen3TTSForConditionalGeneration:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    shape |= {"hidden_size": WIDTH, "intermediate_size": 8, "num_code_groups": 16, "rope_theta": 10000}
    talker = {
        **shape,
        "vocab_size": 3072,
        "text_hidden_size": WIDTH,
        "text_vocab_size": 151936,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [2, 1, 1],
            "rope_type": "default",
            "type": "default",
        },
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_pad_id": 2148,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_language_id": LANGUAGES,
        "spk_id": SPEAKERS,
        "spk_is_dialect": DIALECTS,
        "code_predictor_config": {**shape, "vocab_size": 2048},
    }
    config = Qwen3TTSConfig(
        tts_model_type=kind,
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        tts_model_size="1b7",
        im_start_token_id=151644,
        im_end_token_id=151645,
        tts_pad_token_id=151671,
        tts_bos_token_id=151672,
        tts_eos_token_id=151673,
        speaker_encoder_config={"enc_dim": WIDTH, "enc_channels": [8, 8, 8, 8, 8], "enc_se_channels": 8},
        talker_config=talker,
    )
    model = Qwen3TTSForConditionalGeneration(config).double().eval()
    model.talker.text_projection = nn.Identity()
    model.talker.model.text_embedding = Told(TEXT, TEXTS)
    model.talker.model.codec_embedding = ToldCodec()
    model.talker.code_predictor.model.codec_embedding = nn.ModuleList([Told(FRAME, CODES) for _ in range(15)])

    def catch(**arguments: Any) -> None:
        raise Caught(arguments["inputs_embeds"][0], arguments["trailing_text_hidden"][0])

    model.talker.generate = catch
    return model


def read_row(vector: Tensor) -> list[Any]:
    """A vector as [text id or null, codec id or null, speaker, frame or null]."""
    told = [int(value) for value in vector]
    assert told[TEXTS] <= 1
    assert told[CODECS] <= 1
    assert told[CODES] in (0, 16)
    assert told[FRAME] % 16 == 0
    return [
        told[TEXT] - 1 if told[TEXTS] else None,
        told[CODEC] - 1 if told[CODECS] else None,
        bool(told[SPEAKER]),
        told[FRAME] // 16 - 1 if told[CODES] else None,
    ]


def lay_out(model: Qwen3TTSForConditionalGeneration, case: dict[str, Any]) -> dict[str, Any]:
    text = [*range(1000, 1000 + case["text"])]
    instructions = [*range(2000, 2000 + case["instructions"])]
    arguments: dict[str, Any] = {
        "input_ids": [torch.tensor([HEAD + text + TAIL])],
        "languages": [case["language"]],
        "non_streaming_mode": case["whole"],
    }
    if instructions:
        whole = [151644, 872, 198, *instructions, 151645, 198]
        arguments["instruct_ids"] = [torch.tensor([whole])]
    if case["speaker"]:
        arguments["speakers"] = [case["speaker"]]
    if case["embedding"]:
        embedding = torch.zeros(WIDTH, dtype=torch.float64)
        embedding[SPEAKER] = 1
        frames, said = case["reference_frames"], case["reference_text"]
        arguments["voice_clone_prompt"] = {
            "ref_spk_embedding": [embedding],
            "x_vector_only_mode": [not frames],
            "icl_mode": [bool(frames)],
            "ref_code": [torch.arange(frames)[:, None].expand(-1, 16)] if frames else None,
        }
        if frames:
            ids = [*HEAD, *range(3000, 3000 + said), *REFERENCE_TAIL]
            arguments["ref_ids"] = [torch.tensor([ids])]
    try:
        model.generate(**arguments)
    except Caught as caught:
        rows, trailing = caught.args
        told = [read_row(row) for row in trailing]
        assert all(row[1:] == [None, False, None] for row in told)
        return {**case, "rows": [read_row(row) for row in rows], "trailing": [row[0] for row in told]}
    raise AssertionError("the talker was not asked")


def cases() -> list[tuple[str, dict[str, Any]]]:
    blank = {
        "speaker": None,
        "instructions": 0,
        "embedding": False,
        "reference_text": 0,
        "reference_frames": 0,
    }
    found: list[tuple[str, dict[str, Any]]] = []
    for whole, text in itertools.product((False, True), (1, 5)):
        base = {**blank, "whole": whole, "text": text}
        found += [
            ("custom_voice", {**base, "speaker": speaker, "language": language, "instructions": instructions})
            for speaker, language, instructions in (
                ("vivian", "auto", 0),
                ("vivian", "english", 3),
                ("eric", "auto", 0),
                ("eric", "english", 0),
                ("dylan", "chinese", 1),
                ("vivian", "chinese", 0),
            )
        ]
        found += [
            ("voice_design", {**base, "language": language, "instructions": 4})
            for language in ("auto", "chinese")
        ]
        found += [
            ("base", {**base, "language": language, "embedding": True}) for language in ("auto", "english")
        ]
    shapes = ((2, 3, 2), (2, 3, 9), (4, 3, 1), (4, 6, 2), (2, 3, 4), (2, 3, 5), (2, 3, 6), (1, 1, 1))
    for whole, (text, said, frames) in itertools.product((False, True), shapes):
        clone = {"embedding": True, "reference_text": said, "reference_frames": frames}
        found.append(("base", {**blank, **clone, "whole": whole, "text": text, "language": "english"}))
    return found


def main() -> None:
    torch.manual_seed(0)
    models = {kind: model_of(kind) for kind in ("custom_voice", "voice_design", "base")}
    written = [{"type": kind, **lay_out(models[kind], case)} for kind, case in cases()]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in written)
    Path(__file__).with_name("prompts.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
