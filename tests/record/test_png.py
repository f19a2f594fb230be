"""PNG files, read back by another program's code."""

import base64
import io

import pytest
import torch
from PIL import Image

from fedaws.record.png import png, png_base64


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_come_back(channels: int) -> None:
    pixels = torch.arange(5 * 7 * channels, dtype=torch.uint8).view(5, 7, channels)
    with Image.open(io.BytesIO(png(pixels))) as image:
        assert image.size == (7, 5)
        assert list(image.tobytes()) == pixels.flatten().tolist()


def test_text_is_base64_of_the_same() -> None:
    pixels = torch.zeros(2, 2, 1, dtype=torch.uint8)
    assert base64.b64decode(png_base64(pixels)) == png(pixels)
