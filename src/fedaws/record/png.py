"""Small PNG files from pixels."""

import base64
import io

from torch import Tensor


def png(pixels: Tensor) -> bytes:
    """A PNG of uint8 pixels [height, width, 1, 3 or 4].

    >>> import torch
    >>> png(torch.zeros(2, 3, 1, dtype=torch.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    from PIL import Image  # noqa: PLC0415 - only reports and details of images need it

    array = pixels.cpu().contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array).save(file, "PNG", optimize=True)
    return file.getvalue()


def png_base64(pixels: Tensor) -> str:
    """The same as text."""
    return base64.b64encode(png(pixels)).decode()
