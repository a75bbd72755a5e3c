"""Images: arrays and folders."""

import base64
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qkv.data.formats import images
from qkv.data.formats.images import LabelledImage, read_image, read_images
from tests.data.helpers import complaint

Image = pytest.importorskip("PIL.Image")


def save(path: Path, images: object, labels: object) -> Path:
    np.savez(path, images=np.asarray(images), labels=np.asarray(labels))
    return path


def draw(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def draw_file(path: Path, pixels: npt.NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def pixels_of(images: list[LabelledImage]) -> npt.NDArray[np.uint8]:
    return np.stack([image.pixels for image in images])


def labels_of(images: list[LabelledImage]) -> list[str]:
    return [image.label for image in images]


def test_bytes_are_taken_as_they_are(tmp_path: Path) -> None:
    grey, colours = draw(5, 4, 4), draw(5, 4, 4, 3)
    images = read_images(save(tmp_path / "a.npz", grey, range(5)), 4, 1)
    assert images[0].pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels_of(images), grey[:, None])
    assert labels_of(images) == list("01234")
    images = read_images(str(save(tmp_path / "b.npz", colours, list("abcde"))), 4, 3)
    np.testing.assert_array_equal(pixels_of(images), colours.transpose(0, 3, 1, 2))
    assert labels_of(images) == list("abcde")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0.0, 0.5, 1.0, 0.25], np.float32), [0, 128, 255, 64]),
        (np.array([0.0, 8.0, 16.0, 4.0]), [0, 128, 255, 64]),
        (np.array([0, 8, 16, 4]), [0, 128, 255, 64]),
        (np.array([0, 1, 1, 0]), [0, 255, 255, 0]),
        (np.array([False, True, True, False]), [0, 255, 255, 0]),
        (np.array([0.0, 0.25, 0.5, 0.0]), [0, 64, 128, 0]),  # darker than white
        (np.array([0, 0, 65535, 32768], np.uint16), [0, 0, 255, 128]),
        (np.array([0, 8, 16, 4], np.uint8), [0, 8, 16, 4]),
        (np.zeros(4), [0, 0, 0, 0]),
    ],
)
def test_other_numbers_are_scaled_by_the_largest(
    tmp_path: Path, values: npt.NDArray[np.generic], expected: list[int]
) -> None:
    images = read_images(save(tmp_path / "a.npz", values.reshape(1, 2, 2), [0]), 2, 1)
    assert pixels_of(images).reshape(-1).tolist() == expected


def test_grey_and_colours_become_each_other_as_in_pillow(tmp_path: Path) -> None:
    grey, colours = draw(2, 8, 8, 1), draw(2, 8, 8, 3)
    images = read_images(save(tmp_path / "a.npz", grey, [0, 1]), 8, 3)
    np.testing.assert_array_equal(pixels_of(images), grey.transpose(0, 3, 1, 2).repeat(3, axis=1))
    images = read_images(save(tmp_path / "b.npz", colours, [0, 1]), 8, 1)
    expected = [np.asarray(Image.fromarray(one).convert("L")) for one in colours]
    np.testing.assert_array_equal(pixels_of(images)[:, 0], expected)


def test_folders_are_classes_in_the_order_of_names(tmp_path: Path) -> None:
    colours = draw(5, 6, 6, 3)
    names = ["b/2.PNG", "a/9.bmp", "b/10.png", "a/1.png", "c/x.gif"]
    for name, pixels in zip(names[:4], colours, strict=False):
        draw_file(tmp_path / name, pixels)
    draw_file(tmp_path / names[4], draw(6, 6))
    draw_file(tmp_path / ".thumbs" / "1.png", colours[0])
    (tmp_path / "a" / "notes.txt").write_text("no image", encoding="utf-8")
    (tmp_path / "a" / "._1.png").write_bytes(b"a Mac's")
    (tmp_path / "list.csv").write_text("no image", encoding="utf-8")
    images = read_images(tmp_path, 6, 3)
    assert labels_of(images) == list("aabbc")
    expected = colours[[3, 1, 2, 0]].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(pixels_of(images)[:4], expected)
    assert (images[4].pixels == images[4].pixels[:1]).all()  # grey in three channels
    assert pixels_of(read_images(tmp_path, 6, 1)).shape == (5, 1, 6, 6)


def test_files_are_scaled_and_coloured(tmp_path: Path) -> None:
    half = np.zeros((8, 16, 3), np.uint8)
    half[:, 8:] = (255, 0, 0)
    path = draw_file(tmp_path / "a.png", half)
    pixels = read_image(path, 4, 3)
    assert pixels.dtype == np.uint8 and pixels.shape == (3, 4, 4)
    assert pixels.flags["C_CONTIGUOUS"]
    assert (
        (pixels[1:] == 0).all() and (pixels[0, :, 0] == 0).all() and (pixels[0, :, 3] == 255).all()
    )
    assert 0 < pixels[0, 0, 1] < pixels[0, 0, 2] < 255  # bilinear
    assert read_image(str(path), 4, 1)[0, 0].tolist()[::3] == [0, 76]
    photo = draw_file(tmp_path / "b.jpg", np.full((9, 7, 3), 200, np.uint8))
    assert np.abs(read_image(photo, 5, 3).astype(int) - 200).max() <= 2


def test_files_and_folders_are_joined_in_order(tmp_path: Path) -> None:
    one = save(tmp_path / "1.npz", draw(2, 4, 4), ["x", "y"])
    draw_file(tmp_path / "folder" / "c" / "z.png", draw(4, 4))
    images = read_images([tmp_path / "folder", one], 4, 1)
    assert labels_of(images) == list("cxy")
    np.testing.assert_array_equal(pixels_of(images)[1:], pixels_of(read_images(one, 4, 1)))


def test_digits_of_scikit_learn_are_read(tmp_path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = read_images(save(tmp_path / "a.npz", digits.images, digits.target), 8, 1)
    assert pixels_of(images).shape == (1797, 1, 8, 8)
    assert labels_of(images)[:3] == list("012") and set(labels_of(images)) == set("0123456789")
    np.testing.assert_allclose(pixels_of(images)[:, 0] / 255 * 16, digits.images, atol=0.04)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (draw(2, 8, 8), [0, 1], "the images are 8 × 8 pixels, but model.image_size is 4; set it"),
        (draw(2, 4, 6), [0, 1], "the images are 4 × 6 pixels, but model.image_size is 4"),
        (draw(2, 16), [0, 1], "'images' has the shape (2, 16), but must have (images, height, wid"),
        (draw(2, 4, 4, 4), [0, 1], "'images' has the shape (2, 4, 4, 4), but must"),
        (draw(0, 4, 4), [], "There is no image in "),
        (draw(2, 4, 4), [0], "'labels' has the shape (1,) and type int64, but must have a whole n"),
        (draw(2, 4, 4), [[0], [1]], "'labels' has the shape (2, 1)"),
        (draw(2, 4, 4), [0.5, 1.5], "type float64, but must have a whole number or a string for e"),
        (draw(2, 4, 4), np.array(["a", None]), "is not a whole .npz file of numbers and strings"),
        (np.full((2, 4, 4), None), [0, 1], "with numpy.savez, and no Python objects."),
        (draw(2, 4, 4) - 300.0, [0, 1], "'images' holds values that are negative or no numbers; s"),
        (draw(2, 4, 4) * np.nan, [0, 1], "'images' holds values that are negative or no numbers"),
        (draw(2, 4, 4).astype(str), [0, 1], "'images' has the type <U3, but must hold numbers"),
    ],
)
def test_arrays_that_are_no_images_are_refused(
    tmp_path: Path, images: object, labels: object, sentence: str
) -> None:
    path = save(tmp_path / "a.npz", images, labels)
    message = complaint(read_images, path, 4, 1)
    assert sentence in message and str(path) in message


def test_files_that_are_no_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(3))
    assert "there is no array 'images' or no 'labels'" in complaint(read_images, path, 4, 1)
    whole = save(path, draw(2, 4, 4), [0, 1]).read_bytes()
    for content in (b"", b"plain text", whole[:-30], whole[:50], b"\x80\x04K\x01."):
        path.write_bytes(content)
        assert "is not a whole .npz file" in complaint(read_images, path, 4, 1)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "is not a whole .npz file" in complaint(read_images, path, 4, 1)
    assert "There is no file" in complaint(read_images, tmp_path / "none.npz", 4, 1)


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    draw_file(tmp_path / "top.png", draw(4, 4))
    assert "has a subfolder for each class, with .png" in complaint(read_images, tmp_path, 4, 1)
    path = draw_file(tmp_path / "a" / "1.png", draw(40, 40))
    for content in (b"", b"plain text", path.read_bytes()[:-40]):
        path.write_bytes(content)
        message = complaint(read_images, tmp_path, 4, 1)
        assert message == f"{path} is not a whole image; fetch it again, or delete it."
    assert "There is no file" in complaint(read_image, tmp_path / "none.png", 4, 1)
    assert "is a directory; name the file in it" in complaint(read_image, tmp_path, 4, 1)
    os.mkfifo(tmp_path / "pipe")  # which would keep us waiting
    for read in (read_image, read_images):
        assert "is a pipe or a device" in complaint(read, tmp_path / "pipe", 4, 1)
    assert read_images([], 4, 1) == []


def test_a_data_url_is_read_as_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw_file(tmp_path / "a.png", draw(5, 6, 3))
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    assert (read_image(url, 4, 3) == read_image(path, 4, 3)).all()
    for damaged in (url.replace(";base64", ""), url + "@"):
        assert "data URL is damaged" in complaint(read_image, damaged, 4, 3)
    assert "data URL is not a whole image" in complaint(read_image, url[:62], 4, 3)
    monkeypatch.setattr(images, "MOST_PIXELS", 29)
    assert f"{path} has 6 × 5 pixels, more than 29" in complaint(read_image, path, 4, 3)


def test_a_missing_pillow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw_file(tmp_path / "a.png", draw(4, 4))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "needs Pillow; run: pip install qkv." in complaint(read_image, path, 4, 1)
    arrays = save(tmp_path / "a.npz", draw(1, 4, 4), [0])
    assert len(read_images(arrays, 4, 1)) == 1  # arrays need none
