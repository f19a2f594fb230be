"""A folder of images per class: pictures of one's own."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedaws.data.sources.folders import class_files
from fedaws.errors import FedawsError
from fedaws.files import open_regular

Pictures = NDArray[np.uint8]
Labels = NDArray[np.int64]

# Pillow reads more, some of it through programs of others.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_LARGEST = 1 << 28  # bytes of a file
_PIXELS = 1 << 24  # that any image may have, and a large file this many for each of its bytes:
_PER_BYTE = 100


def images(
    folder: Path, size: int | None = None
) -> tuple[tuple[Pictures, Labels, Pictures | None, Labels | None], tuple[str, ...]]:
    """(x_train, y_train, x_test, y_test) with images [N, 3, H, W] as bytes, and the classes' names; [N, 1, H, W] where
    all of them are grey.

    The classes are the folders in `train`, or in `folder` itself where there are neither `train` nor `test`; without a
    `test` there is no test set. With a `size` the images are scaled and cut, around their centre, to that square.
    """
    files, tested, names = class_files(folder, SUFFIXES, "image")
    x, y = _read_all(files, size, None)
    x_test, y_test = _read_all(tested, size, x.shape[1:]) if tested else (None, None)
    if _grey(x) and (x_test is None or _grey(x_test)):
        x = x[:, :1].copy()
        x_test = None if x_test is None else x_test[:, :1].copy()
    return (x, y, x_test, y_test), names


def _grey(x: Pictures) -> bool:
    return np.array_equal(x[:, 0], x[:, 1]) and np.array_equal(x[:, 0], x[:, 2])


def _read_all(
    files: list[tuple[Path, int]], size: int | None, shape: tuple[int, ...] | None
) -> tuple[Pictures, Labels]:
    """The images straight into the array that is returned; `shape` is what they must have, or None for the first's."""
    first = files[0][0]
    shape = shape or ((3, size, size) if size else read_image(first, None).shape)
    try:
        x = np.empty((len(files), *shape), np.uint8)
    except (MemoryError, ValueError):
        fix = "lower data.image_size" if size else "set a small data.image_size"
        raise FedawsError(f"{len(files):,} images of {_extent(shape)} do not fit into memory; {fix}") from None
    for i, (path, _) in enumerate(files):
        image = read_image(path, size)
        if image.shape != shape:
            raise FedawsError(
                f"{path} has {_extent(image.shape)} pixels, images before it {_extent(shape)}; "
                "set data.image_size to bring all to one size"
            )
        x[i] = image
    return x, np.array([label for _, label in files])


def _extent(shape: tuple[int, ...]) -> str:
    return f"{shape[2]:,} × {shape[1]:,}"  # width × height


def read_image(path: Path, size: int | None) -> Pictures:
    """One image, [3, H, W]."""
    try:
        with open_regular(path, _LARGEST) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                _check_size(image, path)
                if size:
                    image.draft("RGB", (size, size))  # a JPEG is quickly read at a half or a quarter, if that is enough
                upright = _rgb(ImageOps.exif_transpose(image), path)
                if size:
                    upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
    except FedawsError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise FedawsError(
            f"{path} unpacks to more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller or remove it"
        ) from None
    except UnidentifiedImageError:
        raise FedawsError(f"cannot read the image {path}: it is none of {', '.join(_FORMATS)}; remove it") from None
    except MemoryError:
        raise FedawsError(f"{path} does not fit into memory; make it smaller or remove it") from None
    except Exception as error:  # Pillow meets damaged bytes with any of a dozen exceptions
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise FedawsError(f"cannot read the image {path}: {why}; mend or remove it") from None
    return np.asarray(upright).transpose(2, 0, 1)


def _check_size(image: Image.Image, path: Path) -> None:
    """Refuse a small file with a vast image, before memory is taken: a few copies of it are made on the way."""
    most = max(_PIXELS, _PER_BYTE * path.stat().st_size)
    pixels = image.width * image.height
    if pixels > most:
        raise FedawsError(
            f"{path} unpacks to {pixels:,} pixels; wanted at most {most:,} in a file of this size; "
            "make it smaller or remove it"
        )


def _rgb(image: Image.Image, path: Path) -> Image.Image:
    """Three bytes per pixel; what shines through is white."""
    if image.mode[0] in "IF":  # of these Pillow would keep the lowest 8 bits, or clip
        raise FedawsError(f"{path} has more than 8 bits a channel; save it with 8")
    if image.mode not in ("RGBA", "RGBa", "LA", "La", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    white = Image.new("RGBA", clear.size, "white")
    return Image.alpha_composite(white, clear).convert("RGB")
