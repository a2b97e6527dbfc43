"""The authors' package `qwen-tts` 0.1.1 where only its 12 Hz models are wanted.

Its import needs torchaudio, sox and onnxruntime for the 25 Hz tokenizer alone, and torchaudio's wheel does
not load beside a torch without CUDA: empty modules stand in for those that are missing.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

_UNUSED = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")


def _stand_in() -> None:
    for name in _UNUSED:
        try:
            __import__(name)
        except (ImportError, OSError):
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)


_stand_in()

import torch  # noqa: E402
from qwen_tts import Qwen3TTSModel, VoiceClonePromptItem  # noqa: E402

torch.set_num_threads(1)

__all__ = ["Qwen3TTSModel", "VoiceClonePromptItem"]
