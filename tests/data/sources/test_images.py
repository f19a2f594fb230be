"""A folder of images per class."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedaws import Config
from fedaws.data import load_data
from fedaws.data.sources.images import images
from helpers import dense, refusal

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def paint(path: Path, colour: Any = RED, size: tuple[int, int] = (6, 4), mode: str = "RGB", **options: Any) -> Path:
    """An image of one colour, `size` = width × height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, out of order, three images for training and one for the test."""
    paint(tmp_path / "train" / "pear" / "b.png", GREEN)
    paint(tmp_path / "train" / "pear" / "a.png", BLUE)
    paint(tmp_path / "train" / "apple" / "x.png", RED)
    paint(tmp_path / "test" / "pear" / "t.png", GREEN)
    return tmp_path


def colours(x: Any) -> list[tuple[int, ...]]:
    """Each image's first pixel."""
    return [tuple(int(v) for v in image[:, 0, 0]) for image in x]


# --- what it reads --------------------------------------------------------------------------------------------------


def test_classes_and_files_come_in_the_order_of_their_names(folder: Path) -> None:
    (x, y, x_test, y_test), names = images(folder)
    assert names == ("apple", "pear")
    assert (colours(x), y.tolist()) == ([RED, BLUE, GREEN], [0, 1, 1])
    assert x_test is not None
    assert y_test is not None
    assert (colours(x_test), y_test.tolist()) == ([GREEN], [1])


def test_images_are_bytes_channels_first(folder: Path) -> None:
    (x, _, _, _), _ = images(folder)
    assert x.shape == (3, 3, 4, 6)  # images, RGB, height, width
    assert x.dtype == np.uint8
    assert x.flags.c_contiguous


def test_without_train_and_test_the_folders_are_the_classes(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png")
    paint(tmp_path / "b" / "1.png")
    (x, y, x_test, y_test), names = images(tmp_path)
    assert (len(x), y.tolist(), x_test, y_test, names) == (2, [0, 1], None, None, ("a", "b"))


def test_pixels_are_kept_as_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    np.testing.assert_array_equal(images(tmp_path)[0][0][0], pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", ["png", "PNG", "jpg", "JPEG", "bmp", "gif", "tif", "tiff", "webp", "ppm"])
def test_the_usual_formats_are_read(tmp_path: Path, suffix: str) -> None:
    paint(tmp_path / "a" / f"1.{suffix}", (128, 128, 128))
    (x, _, _, _), _ = images(tmp_path)
    assert np.abs(x.astype(int) - 128).max() <= 2  # some lose a little


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
        ("P", 0, (0, 0, 0)),
        ("RGBA", (255, 0, 0, 255), RED),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),  # what shines through is white
        ("LA", (0, 0), (255, 255, 255)),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(tmp_path: Path, mode: str, colour: Any, expected: tuple[int, ...]) -> None:
    paint(tmp_path / "a" / "1.png", colour, mode=mode)
    paint(tmp_path / "a" / "2.png", RED)  # alone a grey one would stay grey
    assert colours(images(tmp_path)[0][0]) == [expected, RED]


@pytest.mark.parametrize(("mode", "colour"), [("L", 100), ("LA", (100, 255)), ("RGB", (100, 100, 100))])
def test_grey_pictures_have_one_channel(tmp_path: Path, mode: str, colour: Any) -> None:
    for place in ("train/a", "train/b", "test/a"):
        paint(tmp_path / place / "1.png", colour, mode=mode)
    (x, _, x_test, _), _ = images(tmp_path)
    assert x_test is not None
    assert (x.shape, x_test.shape) == ((2, 1, 4, 6), (1, 1, 4, 6))  # images, grey, height, width
    assert (x == 100).all()
    assert x.flags.c_contiguous


@pytest.mark.parametrize("coloured", ["train/b", "test/a"])
def test_one_picture_of_colour_gives_all_of_them_three_channels(tmp_path: Path, coloured: str) -> None:
    for place in ("train/a", "train/b", "test/a"):
        paint(tmp_path / place / "1.png", 100, mode="L")
    paint(tmp_path / coloured / "2.png", RED)
    (x, _, x_test, _), _ = images(tmp_path)
    assert x_test is not None
    assert (x.shape[1], x_test.shape[1]) == (3, 3)


def test_a_transparent_palette_becomes_white(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 0, mode="P", transparency=b"\x00")
    assert colours(images(tmp_path)[0][0]) == [(255,)]


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    paint(tmp_path / "a" / "1.jpg", size=(6, 4), exif=exif)
    assert images(tmp_path)[0][0].shape == (1, 3, 6, 4)


def test_other_files_and_hidden_ones_are_passed_over(folder: Path) -> None:
    (folder / "train" / "notes.txt").touch()
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "pear" / "Thumbs.db").touch()
    (folder / "train" / "pear" / "._a.png").touch()
    assert len(images(folder)[0][0]) == 3


@pytest.mark.parametrize("size", [(6, 4), (40, 20), (3, 3)])
def test_with_a_size_all_become_that_square(folder: Path, size: tuple[int, int]) -> None:
    paint(folder / "train" / "apple" / "large.png", GREEN, size=size)
    (x, _, x_test, _), _ = images(folder, 5)
    assert x.shape == (4, 3, 5, 5)
    assert x_test is not None
    assert x_test.shape == (1, 3, 5, 5)
    assert (x[0] == np.array(GREEN, dtype=np.uint8)[:, None, None]).all()


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_the_centre_is_what_is_kept(tmp_path: Path, suffix: str) -> None:
    picture = Image.new("RGB", (160, 32), RED)
    picture.paste(GREEN, (64, 0, 96, 32))
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / f"1.{suffix}")
    (x, _, _, _), _ = images(tmp_path, 8)
    middle = x[0, :, 2:6, 2:6]
    assert np.abs(middle.astype(int) - np.array(GREEN)[:, None, None]).max() < 10


# --- what it refuses ------------------------------------------------------------------------------------------------


def test_two_sizes_are_refused_with_the_way_out(folder: Path) -> None:
    odd = paint(folder / "train" / "pear" / "c.png", size=(7, 4))
    message = refusal(lambda: images(folder))
    assert f"{odd} has 7 × 4 pixels, images before it 6 × 4; set data.image_size" in message


def test_the_test_images_must_have_the_size_too(folder: Path) -> None:
    odd = paint(folder / "test" / "pear" / "u.png", size=(7, 4))
    assert f"{odd} has 7 × 4 pixels" in refusal(lambda: images(folder))


def test_a_class_without_images_is_refused(folder: Path) -> None:
    (folder / "train" / "quince").mkdir()
    assert f"{folder / 'train' / 'quince'} has no images" in refusal(lambda: images(folder))


def test_a_test_class_that_is_not_trained_is_refused(folder: Path) -> None:
    paint(folder / "test" / "quince" / "1.png")
    message = refusal(lambda: images(folder))
    assert f"{folder / 'test' / 'quince'} is a class that {folder / 'train'} has not" in message


def test_a_test_without_training_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "test" / "a" / "1.png")
    assert "has a folder test but none train" in refusal(lambda: images(tmp_path))


def test_images_without_class_folders_are_refused(tmp_path: Path) -> None:
    paint(tmp_path / "1.png")
    assert "has no folders of images; wanted train/<class>/<image>" in refusal(lambda: images(tmp_path))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"cannot read {tmp_path / 'none'}: No such file" in refusal(lambda: images(tmp_path / "none"))


def test_a_folder_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbid)  # chmod does not stop root
    assert f"cannot read {folder / 'train'}: Permission denied" in refusal(lambda: images(folder))


def test_a_folder_whose_name_cannot_be_printed_is_refused(folder: Path) -> None:
    paint(folder / "train" / "two\nlines" / "1.png")
    assert r"two\nlines" in refusal(lambda: images(folder))


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "tif"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8])
def test_a_file_cut_short_is_refused(folder: Path, suffix: str, share: float) -> None:
    cut = folder / "train" / "pear" / f"c.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[: int(share * cut.stat().st_size)])
    assert f"cannot read the image {cut}: " in refusal(lambda: images(folder, 4))


def test_a_file_that_is_no_image_is_refused(folder: Path) -> None:
    (folder / "train" / "pear" / "c.png").write_text("<svg/>")
    assert "c.png" in refusal(lambda: images(folder))


def test_postscript_is_not_run(folder: Path) -> None:
    (folder / "train" / "pear" / "c.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EOF\n")
    assert "cannot read the image" in refusal(lambda: images(folder))


def test_a_dangling_link_is_refused(folder: Path) -> None:
    (folder / "train" / "pear" / "c.png").symlink_to(folder / "nowhere.png")
    assert "c.png: No such file" in refusal(lambda: images(folder))


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "train" / "pear" / "c.png")
    assert "c.png is not a plain file" in refusal(lambda: images(folder))
    (folder / "train" / "pear" / "c.png").unlink()
    (folder / "train" / "pear" / "c.png").symlink_to("/dev/zero")
    assert "c.png is not a plain file" in refusal(lambda: images(folder))


@pytest.mark.parametrize("side", [10_000, 60_000])  # Pillow warns of the one and refuses the other
def test_a_decompression_bomb_is_refused(folder: Path, side: int) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    bomb = folder / "train" / "pear" / "c.png"
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))
    assert f"{bomb} unpacks to more than 89,478,485 pixels" in refusal(lambda: images(folder, 4))


def test_a_small_file_with_a_large_image_is_refused_before_memory_is_taken(folder: Path) -> None:
    bomb = paint(folder / "train" / "pear" / "c.png", size=(5000, 5000), mode="1", colour=0)
    assert bomb.stat().st_size < 10_000
    message = refusal(lambda: images(folder, 4))
    assert f"{bomb} unpacks to 25,000,000 pixels; wanted at most 16,777,216 in a file of this size" in message


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 40_000, mode="I;16")
    assert "1.png has more than 8 bits a channel" in refusal(lambda: images(tmp_path))


def test_a_size_beyond_memory_is_refused(folder: Path) -> None:
    assert "do not fit into memory; lower data.image_size" in refusal(lambda: images(folder, 10**9))


# --- by the configuration -------------------------------------------------------------------------------------------


def test_the_root_is_the_folder(folder: Path) -> None:
    data = load_data(Config().override(["data.name=images", f"data.root={folder}", "data.image_size=3"]))
    assert data.class_names == ("apple", "pear")
    assert data.num_examples.tolist() == [1, 2]
    assert data.x.shape == (3, 3, 3, 3)
    assert data.y_test.tolist() == [1]


def test_without_a_test_folder_the_training_images_are_tested_on(folder: Path) -> None:
    data = load_data(Config().override(["data.name=images", f"data.root={folder / 'train'}"]))
    assert data.x_test.equal(dense(data.x))


def test_a_part_can_be_held_out_instead(folder: Path) -> None:
    for i in range(6):
        paint(folder / "train" / "apple" / f"{i}.png")
        paint(folder / "train" / "pear" / f"{i}.png")
    settings = ["data.name=images", f"data.root={folder / 'train'}", "data.validation=5"]
    data = load_data(Config().override(settings))
    assert (len(data.x), len(data.x_test)) == (10, 5)


def test_without_a_root_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAWS_DATA", "/somewhere")
    assert "set data.root" in refusal(lambda: load_data(Config().override(["data.name=images"])))


def test_unused_classes_leave_the_others_without_names(folder: Path) -> None:
    data = load_data(Config().override(["data.name=images", f"data.root={folder}", "data.num_classes=4"]))
    assert (data.num_classes, data.class_names) == (4, None)
