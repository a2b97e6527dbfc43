"""Mage-VL as a vLLM model: our vision encoder before vLLM's Qwen3 decoder.

The decoder is vLLM's own, with its tensor and pipeline parallelism, quantization and CUDA graphs; its
positions are plain. Every rank of it holds the whole encoder (0.66 GB in bfloat16) and looks for itself, or
none does where pictures come as embeddings. (vLLM's own LLaVA-OneVision-2 has the same architecture, but
needs torchvision to be imported, and remote code to be used.) See `vllm_processor` for the items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMultiModal, SupportsPP
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    WeightsMapper,
    init_vllm_registered_model,
    maybe_prefix,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from duplex.adapters.mage_vl.config import GateConfig, ImageConfig, MageConfig, VisionConfig
from duplex.adapters.mage_vl.image import DevicePixels, block_order
from duplex.adapters.mage_vl.layout import DECODER, HEAD, VISION, gate_layout, model_layout
from duplex.adapters.mage_vl.vision import Vision
from duplex.adapters.mage_vl.vllm_processor import (
    MageDummyInputs,
    MageProcessingInfo,
    MageProcessor,
    image_config,
)

_GATE = {f"{name.split('.')[0]}.": None for name in gate_layout(GateConfig())}


class Tower(nn.Module):  # type: ignore[misc, unused-ignore]
    """The vision encoder and merger, with parameters by their published names, for vLLM's loader to fill."""

    def __init__(self, vision: VisionConfig, image: ImageConfig) -> None:
        super().__init__()
        self._vision_config, self._image_config = vision, image
        for name, shape in model_layout(MageConfig(vision_config=vision)).items():
            if name.startswith(VISION):
                _put(self, name.removeprefix(VISION).split("."), torch.empty(shape))

    def forward(self, images: Sequence[Tensor], positions: Sequence[Tensor]) -> list[Tensor]:
        """Visual tokens (tokens, hidden size) of each picture.

        Args:
            images: uint8 (n, H, W, 3), groups of pictures of one size.
            positions: Integers (n, H // 16, W // 16, 3), the same groups.
        """
        merge = self._vision_config.spatial_merge_size
        grid = [(1, *group.shape[1:3]) for group in positions for _ in group]  # a row each, as published
        pixels = torch.cat([self._pixels(group) for group in images])
        places = torch.cat([block_order(group, merge) for group in positions])
        tokens = self._vision(pixels, grid, places)
        return list(torch.split(tokens, [height * width // merge**2 for _, height, width in grid]))

    @cached_property
    def _vision(self) -> Vision:
        """Shares the parameters' memory. Made when they are loaded, at first use."""
        weights = {f"{VISION}{name}": value.data for name, value in self.named_parameters()}
        return Vision(self._vision_config, weights)

    @cached_property
    def _pixels(self) -> DevicePixels:
        return DevicePixels(self._image_config, self._vision.device, self._vision.dtype)


@MULTIMODAL_REGISTRY.register_processor(MageProcessor, info=MageProcessingInfo, dummy_inputs=MageDummyInputs)
class MageVLForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsPP):  # type: ignore[misc, unused-ignore]
    """The model, as vLLM's model runner calls it."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            DECODER: "language_model.model.",
            HEAD: f"language_model.{HEAD}",
            VISION: "visual.",
            **_GATE,  # its file stands beside the decoder's; whoever runs the gate loads it
        }
    )

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """What vLLM's own server puts into a chat for a picture."""
        return "<|vision_start|><|image_pad|><|vision_end|>" if modality == "image" else None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        vision = {name: getattr(config.vision_config, name) for name in VisionConfig.__struct_fields__}
        self.config = config
        mark: Any = self
        with mark._mark_tower_model(vllm_config, "image"):  # left out where no pixels are taken
            self.visual = Tower(VisionConfig(**vision), image_config(vllm_config.model_config))
        with mark._mark_language_model(vllm_config):
            decoder: Any = init_vllm_registered_model(
                vllm_config=vllm_config,
                hf_config=config.text_config,
                prefix=maybe_prefix(prefix, "language_model"),
                architectures=["Qwen3ForCausalLM"],
            )
            self.language_model: Any = decoder
        self.make_empty_intermediate_tensors = decoder.make_empty_intermediate_tensors

    def get_language_model(self) -> Any:
        return self.language_model

    def embed_multimodal(self, **fields: Any) -> list[Tensor]:
        """Embeddings (tokens, hidden size) of each picture of a batch: all pixels, or all embeddings.

        Args:
            fields: `image_embeds`, (tokens, hidden size) a picture; or `pixels`, uint8 (H, W, 3), and
                `positions`, (H // 16, W // 16, 3) a picture. Stacked where the pictures are of one size.
        """
        if (embeds := fields.get("image_embeds")) is not None:
            return list(embeds)
        if "pixels" not in fields:
            return []
        look: Any = self.visual
        tokens: list[Tensor] = look(_groups(fields["pixels"]), _groups(fields["positions"]))
        return tokens

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: object,
    ) -> Any:
        """Hidden states of a step, or what the next stage of a pipeline needs."""
        if intermediate_tensors is not None:
            inputs_embeds = None
        return self.language_model.model(
            input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds
        )

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        logits: Tensor | None = self.language_model.compute_logits(hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the published tensors, and say which there were."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded


def _groups(pictures: Tensor | list[Tensor]) -> list[Tensor]:
    """Stacked pictures of one size are one group, others one each."""
    return [pictures] if isinstance(pictures, Tensor) else [picture[None] for picture in pictures]


def _put(module: nn.Module, path: Sequence[str], value: Tensor) -> None:
    """A parameter below `module`; modules on the way to it are made."""
    *way, last = path
    for name in way:
        if not hasattr(module, name):
            module.add_module(name, nn.Module())
        module = module.get_submodule(name)
    module.register_parameter(last, nn.Parameter(value, requires_grad=False))
