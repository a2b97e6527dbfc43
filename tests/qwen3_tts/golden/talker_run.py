"""One request through the authors' package, with all that a comparison needs written down on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_cases import Case
from numpy.typing import NDArray
from reference import Qwen3TTSModel, VoiceClonePromptItem

GAP = 1e-3
"""The least lead of a code over the next best. Below it another order of sums might choose the other."""
PENALTY = 1.05
END = 2150
CODES = 2048


class TooClose(Exception):
    """A code won by less than `GAP`."""


@dataclass(slots=True)
class Run:
    """`codes` (frames, 16); `logits` (steps, 3072), before anything is done to them; `prompt` (rows, hidden),
    `trailing` (rows, hidden), `pad` (hidden,): the embeddings the package made; `text_ids`: the whole chat
    layout; `gap`, `predictor_gap`: the least lead of a code 0 and of a code of another group; `penalised`,
    `suppressed`: how many codes 0 the repetition penalty and the ban on control codes changed; `held_back`:
    how often the end code would have come before it may; `embedding`, `reference_codes`: the voice to clone;
    `audio` (samples,); `seen`: codes 0 so far."""

    codes: NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 16), np.int16))
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    prompt: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    trailing: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    pad: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    text_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    gap: float = np.inf
    predictor_gap: float = np.inf
    penalised: int = 0
    suppressed: int = 0
    held_back: int = 0
    embedding: NDArray[np.float32] | None = None
    reference_codes: NDArray[np.int16] | None = None
    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    seen: set[int] = field(default_factory=set)

    def talker_step(self, logits: NDArray[np.float32]) -> None:
        """Note the logits that a code 0 is chosen from, and how clear the choice is."""
        self.logits.append(logits)
        step = len(self.logits) - 1
        allowed = np.zeros(len(logits), bool)
        allowed[:CODES] = True
        allowed[END] = True
        self.held_back += step < 2 and int(np.where(allowed, logits, -np.inf).argmax()) == END
        allowed[END] = step >= 2
        free = int(logits.argmax())
        banned = np.where(allowed, logits, -np.inf)
        scores = banned.copy()
        for code in self.seen:
            scores[code] = scores[code] / PENALTY if scores[code] > 0 else scores[code] * PENALTY
        code = int(scores.argmax())
        self.suppressed += not allowed[free]
        self.penalised += code != int(banned.argmax())
        self.seen.add(code)
        self.gap = min(self.gap, lead(scores))
        if self.gap < GAP:
            raise TooClose

    def predictor_step(self, logits: NDArray[np.float32]) -> None:
        """The same for a code of another group."""
        self.predictor_gap = min(self.predictor_gap, lead(logits))
        if self.predictor_gap < GAP:
            raise TooClose


def lead(scores: NDArray[np.float32]) -> float:
    """By how much the best score leads."""
    best = np.partition(scores, -2)[-2:]
    return float(best[1] - best[0])


def run_case(case: Case, folder: Path) -> Run:
    """Greedy codes of a case, through the package's public call.

    Raises:
        TooClose: a choice is not clear enough for a comparison.
    """
    tts = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32)
    run = Run()
    talker, predictor = tts.model.talker, tts.model.talker.code_predictor
    hooks = [
        talker.codec_head.register_forward_hook(
            lambda _module, _inputs, output: run.talker_step(output[0, -1].float().numpy().copy())
        )
    ]
    hooks += [
        head.register_forward_hook(
            lambda _module, _inputs, output: run.predictor_step(output[0, -1].float().numpy().copy())
        )
        for head in predictor.lm_head
    ]
    _keep_prompt(tts, run)
    _keep_codes(tts, run)
    common: dict[str, Any] = {
        "text": case.text,
        "language": case.language,
        "non_streaming_mode": case.whole,
        "do_sample": False,
        "subtalker_dosample": False,
        "repetition_penalty": PENALTY,
        "max_new_tokens": case.frames + 1,  # the last token drawn is no frame
    }
    if case.model_type == "custom_voice":
        waves, _ = tts.generate_custom_voice(
            speaker=case.speaker, instruct=case.instructions or None, **common
        )
    elif case.model_type == "voice_design":
        waves, _ = tts.generate_voice_design(instruct=case.instructions, **common)
    else:
        waves, _ = tts.generate_voice_clone(voice_clone_prompt=[_reference(case, tts, run)], **common)
    run.audio = waves[0].astype(np.float32)
    for hook in hooks:
        hook.remove()
    return run


def _keep_prompt(tts: Any, run: Run) -> None:
    generate = tts.model.talker.generate
    tokenize = tts._tokenize_texts

    def keep_prompt(**kwargs: Any) -> Any:
        run.prompt = kwargs["inputs_embeds"][0].float().numpy().copy()
        run.trailing = kwargs["trailing_text_hidden"][0].float().numpy().copy()
        run.pad = kwargs["tts_pad_embed"].flatten().float().numpy().copy()
        return generate(**kwargs)

    def keep_ids(texts: list[str]) -> Any:
        ids = tokenize(texts)
        if not run.text_ids.size:  # the text to speak is the first one
            run.text_ids = ids[0][0].numpy().astype(np.int32)
        return ids

    tts.model.talker.generate = keep_prompt
    tts._tokenize_texts = keep_ids


def _keep_codes(tts: Any, run: Run) -> None:
    """The codes on their way to the codec."""
    generate = tts.model.generate

    def keep(**kwargs: Any) -> Any:
        codes, hidden = generate(**kwargs)
        run.codes = codes[0].numpy().astype(np.int16)
        return codes, hidden

    tts.model.generate = keep


def _reference(case: Case, tts: Any, run: Run) -> Any:
    """A voice to clone. Its numbers are made up: what they are is no matter, they are kept with the codes."""
    random = np.random.default_rng(case.seed)
    width = tts.model.config.talker_config.hidden_size
    run.embedding = random.standard_normal(width).astype(np.float32)
    in_context = case.reference == "context"
    if in_context:
        run.reference_codes = random.integers(0, CODES, (case.reference_frames, 16)).astype(np.int16)
    return VoiceClonePromptItem(
        ref_code=torch.from_numpy(run.reference_codes.astype(np.int64)) if in_context else None,
        ref_spk_embedding=torch.from_numpy(run.embedding),
        x_vector_only_mode=not in_context,
        icl_mode=in_context,
        ref_text=case.reference_text or None,
    )
