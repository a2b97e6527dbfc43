"""The page on windows says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from duplex.adapters.mage_vl.windows import side_information
from duplex.adapters.mage_vl.windows.backends import WindowOptions
from duplex.adapters.mage_vl.windows.side_information import MOST_FRAMES, MOST_NUMBERS

PAGE = Path(__file__).parents[3] / "docs" / "mage-vl-windows.md"


def first_cells(heading: str) -> list[list[str]]:
    """Cells of the rows below a heading whose first cell is code."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `.*\|$", section, re.MULTILINE)
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_every_option_with_its_default() -> None:
    table = {name: default for name, default, _ in first_cells("Options")}
    fields = msgspec.structs.fields(WindowOptions)
    assert list(table) == [field.name for field in fields]
    for field in fields:
        shown = table[field.name].replace(",", "")
        assert shown == ("–" if field.default is None else f"{field.default}".removesuffix(".0"))


def test_every_key_and_bound_of_side_information() -> None:
    keys = [row[0] for row in first_cells("Side information from clients")]
    assert tuple(keys) == side_information.KEYS
    assert all(f"`{key}`" in (side_information.__doc__ or "") for key in keys)
    text = PAGE.read_text()
    assert f"{MOST_FRAMES:,} frames and {MOST_NUMBERS:,} numbers" in text


@pytest.mark.parametrize("wrong", [{"backend": "magic"}, {"num_frames": 0}, {"codec_fps": 0}, {"x": 1}])
def test_options_that_do_not_exist_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, WindowOptions)
