from __future__ import annotations

import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from lowbit.data.dataset import BadImageError
from lowbit.data.decode import decode, read_image
from lowbit.errors import LowbitError
from tests.support.pictures import encoded, picture

PICTURE = picture()
JPEG = encoded(PICTURE, "JPEG", quality=95)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 4) -> bool:
    assert found.dtype == np.uint8 and found.shape == expected.shape
    return abs(found.astype(int) - expected.astype(int)).mean() < tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_every_format_gives_rgb(kind):
    found = decode(encoded(PICTURE, kind), "x")
    assert close(found, PICTURE)
    assert found.flags.c_contiguous


def test_jpeg_is_what_pillow_decodes():
    assert close(decode(JPEG, "x"), np.asarray(Image.open(io.BytesIO(JPEG))), 0.5)


def test_progressive_and_greyscale_jpeg():
    assert close(decode(encoded(PICTURE, "JPEG", progressive=True, quality=95), "x"), PICTURE)
    grey = Image.fromarray(PICTURE).convert("L")
    assert close(decode(encoded(grey, "JPEG", quality=95), "x"), np.asarray(grey.convert("RGB")))


def test_cmyk_jpeg_becomes_rgb():
    cmyk = Image.fromarray(PICTURE).convert("CMYK")
    assert close(decode(encoded(cmyk, "JPEG", quality=95), "x"), PICTURE)


def test_rare_subsampling_is_left_to_pillow(monkeypatch):
    def unknown(data):
        raise ValueError("tjDecompressHeader3(): Could not determine subsampling level of JPEG image")

    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", unknown)
    assert close(decode(JPEG, "x"), PICTURE)
    with pytest.raises(BadImageError, match="truncated"):
        decode(JPEG[:-300], "x")


def test_sixteen_bits_keep_the_upper_eight():
    grey = (np.arange(48 * 64, dtype=np.uint16) * 21).reshape(48, 64)
    found = decode(encoded(Image.fromarray(grey), "PNG"), "x")
    assert np.array_equal(found, np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_palette_and_bilevel_and_alpha():
    palette = Image.fromarray(PICTURE).quantize(256)
    assert close(decode(encoded(palette, "PNG"), "x"), PICTURE, 12)
    bilevel = Image.fromarray(PICTURE).convert("1")
    assert set(np.unique(decode(encoded(bilevel, "PNG"), "x"))) == {0, 255}
    transparent = Image.fromarray(np.dstack([PICTURE, np.zeros((48, 64), np.uint8)]))
    assert np.array_equal(decode(encoded(transparent, "PNG"), "x"), PICTURE)
    grey_alpha = Image.fromarray(PICTURE).convert("LA")
    assert close(decode(encoded(grey_alpha, "PNG"), "x"), np.asarray(grey_alpha.convert("RGB")))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_first_frame_of_an_animation(kind):
    red, blue = (Image.new("RGB", (20, 10), colour) for colour in ((250, 0, 0), (0, 0, 250)))
    found = decode(encoded(red, kind, save_all=True, append_images=[blue]), "x")
    assert close(found, np.asarray(red))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation_is_applied(kind, orientation):
    image = Image.fromarray(PICTURE)
    exif = image.getexif()
    exif[0x0112] = orientation
    data = encoded(image, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert close(decode(data, "x"), expected, 1)


def test_damaged_exif_does_not_matter():
    data = encoded(PICTURE, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xee" * 50)
    assert close(decode(data, "x"), PICTURE)


def test_a_large_jpeg_may_be_decoded_smaller_but_not_too_small():
    data = encoded(picture(480, 640), "JPEG")
    assert decode(data, "x", at_least=(481, 481)).shape == (480, 640, 3)
    assert decode(data, "x", at_least=(300, 300)).shape == (480, 640, 3)
    assert decode(data, "x", at_least=(240, 240)).shape == (240, 320, 3)
    assert decode(data, "x", at_least=(1, 1)).shape == (60, 80, 3)
    assert close(decode(data, "x", at_least=(100, 120)), picture(120, 160), 8)


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 100))
def test_at_least_is_respected(height, width, side):
    data = simplejpeg.encode_jpeg(np.zeros((height, width, 3), np.uint8))
    found = decode(data, "x", at_least=(side, side))
    assert min(found.shape[:2]) >= min(side, height, width)
    assert decode(data, "x", at_least=(side, side)).shape[2] == 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP"])
@pytest.mark.parametrize("tenths", range(1, 10))
def test_truncated_files_are_errors_not_grey_images(kind, tenths):
    noise = np.random.default_rng(0).integers(0, 256, PICTURE.shape, dtype=np.uint8)
    data = encoded(noise, kind)
    with pytest.raises(BadImageError, match=r"^cut\.img: .*; replace the file"):
        decode(data[: len(data) * tenths // 10], "cut.img")


def test_a_jpeg_without_its_last_byte_is_an_error():
    with pytest.raises(BadImageError, match="Premature end"):
        decode(JPEG[:-2], "cut.jpg")


def test_a_jpeg_with_damage_inside_is_an_error():
    noise = encoded(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8), "JPEG")
    damaged = noise[: len(noise) // 2] + b"\xff\xd9" + noise[len(noise) // 2 :]
    with pytest.raises(BadImageError, match="corrupt or truncated"):
        decode(damaged, "x.jpg")


def test_empty_and_foreign_files():
    with pytest.raises(BadImageError, match=r"^a\.jpg: the file is empty"):
        decode(b"", "a.jpg")
    with pytest.raises(BadImageError, match=r"^a\.jpg: not an image of a known format \(JPEG, PNG"):
        decode(b"<html>404</html>", "a.jpg")
    with pytest.raises(BadImageError, match=r"a\.eps"):
        decode(encoded(PICTURE, "EPS"), "a.eps")


def test_a_bomb_is_refused_before_it_is_unpacked():
    header = bytearray(encoded(PICTURE, "JPEG"))
    frame = header.index(b"\xff\xc0")
    header[frame + 5 : frame + 9] = b"\xfd\xe8\xfd\xe8"
    with pytest.raises(BadImageError, match="65000x65000 is more than"):
        decode(bytes(header), "bomb.jpg")


def test_float_pixels_are_refused():
    with pytest.raises(BadImageError, match="32-bit pixels"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "x.tif")


@given(
    st.binary(max_size=80),
    st.sampled_from([b"", JPEG[:20], JPEG[:300], b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"]),
)
def test_garbage_is_never_another_error(garbage, start):
    try:
        decode(start + garbage, "garbage")
    except LowbitError as error:
        assert "garbage" in str(error)


def test_reading_names_the_file(tmp_path):
    path = tmp_path / "with a space.jpg"
    path.write_bytes(JPEG)
    assert close(read_image(str(path)), PICTURE)
    with pytest.raises(BadImageError, match=r"none\.jpg: cannot be read \(No such file") as caught:
        read_image(str(tmp_path / "none.jpg"))
    assert caught.value.name == str(tmp_path / "none.jpg")
    with pytest.raises(BadImageError, match="it is a folder"):
        read_image(str(tmp_path))


def test_threads_leave_the_process_warnings_as_they_were():
    before, png = list(warnings.filters), encoded(PICTURE, "PNG")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: decode(png, "x"), range(1000)))
    assert list(warnings.filters) == before
