"""How vLLM takes the pictures of a prompt: one item a frame or canvas, without remote code.

An item of `multi_modal_data["image"]` is one of

- a float tensor (tokens, hidden size): visual tokens that were computed elsewhere, merger included;
- `prompt.Pixels`: a frame or canvas, its sides multiples of 32, and where its patches came from;
- `prompt.Spread`: one of these, and how its tokens stand in the prompt;
- a picture as vLLM's own server gives it (PIL, or uint8 (H, W, 3)), which is resized as published.

A prompt has one `<|image_pad|>` an item; it is spread to as many as the item has tokens. Nothing is hashed
where the caller names its items (`multi_modal_uuids`). Pixels travel as bytes and become numbers on the
device.

`apply` stands for the whole of vLLM's chain of processing: what is below it differs between vLLM's versions,
and serves Hugging Face processors, which there is none of here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from vllm.inputs import mm_input
from vllm.multimodal.inputs import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.parse import ImageEmbeddingItems, ModalityDataItems, MultiModalDataParser
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from duplex.adapters.mage_vl.config import ImageConfig, read_image_config
from duplex.adapters.mage_vl.image import ImageProcessor, raster_positions
from duplex.adapters.mage_vl.prompt import Pixels, Spread
from duplex.core.errors import DuplexError

_FIELD = MultiModalFieldConfig.batched("image")


def image_config(model_config: Any) -> ImageConfig:
    """What the checkpoint's `preprocessor_config.json` says, as vLLM has read it."""
    return read_image_config(model_config.hf_image_processor_config or {})


class SeenItems(ImageEmbeddingItems):  # type: ignore[misc, unused-ignore]
    """The items of a prompt, all of them embeddings: vLLM counts these by other rules."""

    def __init__(self, items: Sequence[Any], hidden_size: int | None) -> None:
        super().__init__([_data(item) for item in items], hidden_size)
        self._items = items

    def get(self, index: int) -> Any:
        return self._items[index]

    def get_item_for_hash(self, index: int) -> object:
        return self.data[index]


class PixelItems(ModalityDataItems[Sequence[Any], Any]):  # type: ignore[misc, unused-ignore]
    """The items of a prompt of which at least one is pixels."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items, "image")

    def get_count(self) -> int:
        return len(self.data)

    def get(self, index: int) -> Any:
        return self.data[index]

    def get_item_for_hash(self, index: int) -> object:
        item = _data(self.data[index])
        return {"image": item.image, "positions": item.positions} if isinstance(item, Pixels) else item

    def get_processor_data(self) -> Mapping[str, object]:
        return {"images": self.data}

    def get_passthrough_data(self) -> Mapping[str, object]:
        return {}


class MageDataParser(MultiModalDataParser):  # type: ignore[misc, unused-ignore]
    """Tells embeddings from pixels."""

    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        if data is None:
            return None
        if isinstance(data, torch.Tensor) and data.ndim == 3 and data.is_floating_point():
            data = list(data)
        items = data if isinstance(data, list | tuple) else [data]
        if not items:
            return None
        if all(_is_embeds(_data(item)) for item in items):
            return SeenItems(items, self.expected_hidden_size)
        return PixelItems(items)


class MageProcessingInfo(BaseProcessingInfo):  # type: ignore[misc, unused-ignore]
    """What the processor knows of the model."""

    def get_data_parser(self) -> MageDataParser:
        return MageDataParser(expected_hidden_size=self._get_expected_hidden_size())

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """The largest picture in tokens, which the model's memory is measured with."""
        return {"image": min(self.most_tokens, seq_len)}

    @property
    def images(self) -> ImageConfig:
        return image_config(self.ctx.model_config)

    @property
    def most_tokens(self) -> int:
        """Of a picture of `max_pixels`."""
        return max(1, self.images.max_pixels // self.block**2)

    @property
    def block(self) -> int:
        """Side of a visual token, in pixels: 32."""
        return self.images.patch_size * self.images.merge_size

    @property
    def pad(self) -> int:
        return int(self.get_hf_config().image_token_id)


class MageDummyInputs(BaseDummyInputsBuilder[MageProcessingInfo]):  # type: ignore[misc, unused-ignore]
    """The largest input, to measure memory with. Its prompt is empty: the processor fills it in."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Any]
    ) -> dict[str, Any]:
        info: Any = self.info
        if not info.ctx.get_mm_config().get_limit_per_prompt("image"):  # no encoder to measure
            hidden = info.ctx.model_config.get_inputs_embeds_size()
            item: Any = torch.zeros(min(info.most_tokens, seq_len), hidden)
        else:
            rows = max(1, int(min(info.most_tokens, seq_len) ** 0.5))
            columns = max(1, min(info.most_tokens, seq_len) // rows)
            side = info.images.merge_size
            image = np.zeros((rows * info.block, columns * info.block, 3), np.uint8)
            item = Pixels(image=image, positions=np.zeros((rows * side, columns * side, 3), np.int32))
        return {"image": [item] * mm_counts.get("image", 0)}


class MageProcessor(BaseMultiModalProcessor[MageProcessingInfo]):  # type: ignore[misc, unused-ignore]
    """From a prompt and its items to what the engine core takes."""

    requires_tokenizer = False

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        """See the module's words.

        Args:
            inputs: vLLM's `ProcessorInputs`. An empty prompt is one pad an item.
            timing_ctx: vLLM's clock.

        Raises:
            ValueError: pads and items differ in number, or an item is nothing that is known.
        """
        with timing_ctx.record("apply_hf_processor"):
            pictures = [self._picture(item) for item in inputs.mm_data_items.get("image", ())]
        with timing_ctx.record("apply_prompt_updates"):
            ids, places = _spread(self._ids(inputs.prompt, len(pictures)), pictures, self.info.pad)
        with timing_ctx.record("get_mm_hashes"):
            keys = self._keys(inputs) if pictures else []
        with timing_ctx.record("merge_mm_kwargs"):  # last: what fails after it is in the cache and never sent
            sent = self._sent(inputs, pictures, keys)
        return mm_input(
            prompt_token_ids=ids,
            mm_kwargs=MultiModalKwargsItems({"image": sent}),
            mm_hashes={"image": keys},
            mm_placeholders={"image": places},
        )

    def _picture(self, item: Any) -> _Picture:
        ids = item.ids if isinstance(item, Spread) else None
        item = getattr(_data(item), "media", _data(item))  # vLLM wraps what came with its bytes
        if _is_embeds(item):
            tokens, fields = len(item), {"image_embeds": item.to(self.info.ctx.model_config.dtype)}
        else:
            pixels = item if isinstance(item, Pixels) else self._resized(item)
            _check(pixels, self.info)
            tokens, fields = pixels.tokens, {"pixels": pixels.image, "positions": pixels.positions}
        pad = self.info.pad
        if ids is None:
            return _Picture((pad,) * tokens, None, fields)
        if (found := ids.count(pad)) != tokens:
            raise ValueError(f"a canvas of {tokens} tokens is spread to {found}")
        return _Picture(ids, torch.tensor(ids) == pad, fields)

    def _resized(self, item: Any) -> Pixels:
        """A picture of any size, as published."""
        if isinstance(item, np.ndarray) and item.ndim == 3 and item.dtype == np.uint8:
            item = Image.fromarray(item)
        if not isinstance(item, Image.Image):
            raise ValueError(f"{type(item).__name__} is no picture: embeddings, Pixels or uint8 (H, W, 3)")
        images = self.info.images
        try:
            height, width = ImageProcessor(images).fit(item.height, item.width)
        except DuplexError as error:
            raise ValueError(error.message) from error  # which vLLM takes for the caller's fault
        image = np.asarray(item.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
        size = images.patch_size
        return Pixels(image=image, positions=raster_positions(0, height // size, width // size))

    def _keys(self, inputs: Any) -> list[str]:
        """The caller's names of the items, or hashes of those without one."""
        if hasattr(self, "_get_mm_hashes"):
            return list(self._get_mm_hashes(inputs)["image"])
        return list(inputs.get_mm_hashes(self.info.model_id)["image"])  # vLLM 0.26

    def _sent(self, inputs: Any, pictures: Sequence[_Picture], keys: Sequence[str]) -> list[Any]:
        """The items' fields; None for those that vLLM's cache knows the core to have."""
        cache = getattr(inputs, "cache", getattr(self, "cache", None))  # the processor's own in vLLM 0.26
        if cache is None:
            return [picture.item() for picture in pictures]
        try:
            for key in keys:  # all of a prompt stay while its new ones come in
                cache.touch_sender_cache_item(key)
            return [
                cache.get_and_update_item(None if cache.is_cached_item(key) else (picture.item(), ()), key)[0]
                for picture, key in zip(pictures, keys, strict=True)
            ]
        finally:
            if hasattr(cache, "release_sender_touches"):  # not in vLLM 0.26
                cache.release_sender_touches()

    def _ids(self, prompt: str | list[int], count: int) -> list[int]:
        if not prompt:
            return [self.info.pad] * count
        if isinstance(prompt, str):
            return list(self.info.get_tokenizer().encode(prompt, add_special_tokens=False))
        return prompt

    def _get_mm_fields_config(self, *_: Any) -> Mapping[str, MultiModalFieldConfig]:
        return dict.fromkeys(("image_embeds", "pixels", "positions"), _FIELD)

    def _get_prompt_updates(self, *_: Any, **__: Any) -> Sequence[Any]:
        return ()  # `apply` updates the prompt


class _Picture(NamedTuple):
    """What an item's placeholder becomes, which of these are visual tokens (None: all), and what the model is
    given of it."""

    ids: tuple[int, ...]
    visual: torch.Tensor | None
    fields: Mapping[str, torch.Tensor | NDArray[Any]]

    def item(self) -> MultiModalKwargsItem:
        return MultiModalKwargsItem(
            {name: _FIELD.build_elems(name, [_tensor(value)])[0] for name, value in self.fields.items()}
        )


def _spread(
    ids: Sequence[int], pictures: Sequence[_Picture], pad: int
) -> tuple[list[int], list[PlaceholderRange]]:
    """The prompt with all pads, and where each picture's are."""
    if (found := ids.count(pad)) != len(pictures):
        raise ValueError(f"the prompt has {found} <|image_pad|> for {len(pictures)} pictures")
    spread: list[int] = []
    places = []
    after = 0
    for picture in pictures:
        at = ids.index(pad, after)
        spread += ids[after:at]
        places.append(PlaceholderRange(offset=len(spread), length=len(picture.ids), is_embed=picture.visual))
        spread += picture.ids
        after = at + 1
    return spread + list(ids[after:]), places


def _check(pixels: Pixels, info: MageProcessingInfo) -> None:
    """What the encoder would choke on must not reach the core, where it would end the engine."""
    image, positions = pixels.image, pixels.positions
    height, width, channels = image.shape
    size, block = info.images.patch_size, info.block
    if height < block or width < block or height % block or width % block or channels != 3:
        raise ValueError(f"an image of shape {image.shape}: sides are multiples of {block}, of 3 channels")
    if image.dtype != np.uint8 or positions.dtype.kind != "i":
        raise ValueError(f"an image of {image.dtype} and positions of {positions.dtype}: uint8 and integers")
    if positions.shape != (height // size, width // size, 3):
        raise ValueError(f"positions of shape {positions.shape} for an image of {image.shape}")


def _data(item: Any) -> Any:
    return item.data if isinstance(item, Spread) else item


def _is_embeds(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.ndim == 2 and item.is_floating_point()


def _tensor(value: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.require(value, None, ["C", "W"]))
