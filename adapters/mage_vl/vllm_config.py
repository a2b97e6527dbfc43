"""A checkpoint's configuration as vLLM reads it: transformers' classes, from the published `config.json`."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig, Qwen3Config

from duplex.adapters.mage_vl.config import MageConfig, VisionConfig

_DEFAULTS = MageConfig()


class MageVLVisionConfig(PretrainedConfig):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """`vision_config`."""

    model_type = "mage_vl_vision"
    base_config_key = "vision_config"

    def __init__(self, **values: Any) -> None:
        for name in VisionConfig.__struct_fields__:
            setattr(self, name, values.pop(name, getattr(_DEFAULTS.vision_config, name)))
        super().__init__(**values)


class MageVLConfig(PretrainedConfig):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """`config.json`. The decoder's part is a `Qwen3Config`, in `text_config`."""

    model_type = "mage_vl"
    sub_configs: ClassVar[dict[str, Any]] = {"vision_config": MageVLVisionConfig, "text_config": Qwen3Config}

    def __init__(
        self,
        vision_config: dict[str, Any] | PretrainedConfig | None = None,
        text_config: dict[str, Any] | PretrainedConfig | None = None,
        **values: Any,
    ) -> None:
        self.vision_config = _part(MageVLVisionConfig, vision_config)
        self.text_config = _part(Qwen3Config, text_config)
        for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
            setattr(self, name, values.pop(name, getattr(_DEFAULTS, name)))
        super().__init__(**values)


def _part(kind: type[PretrainedConfig], found: dict[str, Any] | PretrainedConfig | None) -> PretrainedConfig:
    return found if isinstance(found, PretrainedConfig) else kind(**(found or {}))
