"""Images with labels: arrays in .npz files, or folders with a subfolder for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkv.data.readers import Paths, explained, listed
from qkv.errors import UserError

Pixels = npt.NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
RED_GREEN_BLUE = (19595, 38470, 7471)  # in 65536ths: what Pillow's grey is made of


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels (N, C, H, W) from 0 to 255, and the label of each image."""

    pixels: Pixels
    labels: tuple[str, ...]


def read_images(paths: Paths, size: int, channels: int, name: str = "") -> Images:
    """Read labelled images; `name` ("", "valid_", "test_") is the setting's prefix in errors.

    Arrays must be `size` pixels high and wide; files in folders are scaled to that. All become grey
    (1 channel) or red, green and blue (3). The order is that of the array, or of the names.
    """
    places = listed(paths)
    if not places:
        raise UserError(
            f"data: no examples are given; set {name}examples to .npz files, or to folders with a "
            f"subfolder for each class."
        )
    parts = [
        _read_folder(path, size, channels) if path.is_dir() else _read_arrays(path, size, channels)
        for path in places
    ]
    labels = tuple(label for part in parts for label in part.labels)
    return Images(np.concatenate([part.pixels for part in parts]), labels)


def read_image(path: str | Path, size: int, channels: int) -> Pixels:
    """Read one image file, scaled to `size`: (C, H, W)."""
    try:
        from PIL import Image  # an optional library, and slow to import
    except ImportError as error:
        raise UserError("Reading image files needs Pillow; run: pip install pillow.") from error
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a directory; name the image in it.")
    with explained(path):
        content = path.open("rb")
    try:
        with content, Image.open(content) as image:
            colours = image.convert("L" if channels == 1 else "RGB")
            scaled = colours.resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a whole image; fetch it again, or delete it.") from error
    pixels = np.asarray(scaled, np.uint8).reshape(size, size, -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _read_folder(path: Path, size: int, channels: int) -> Images:
    found = [
        (file, folder.name)
        for folder in _sorted(path)
        if folder.is_dir() and not folder.name.startswith(".")
        for file in _sorted(folder)
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    if not found:
        raise UserError(
            f"There is no image in {path}; a folder of images has a subfolder for each class, with "
            f"{', '.join(SUFFIXES)} files in it."
        )
    pixels = np.stack([read_image(file, size, channels) for file, _ in found])
    return Images(pixels, tuple(label for _, label in found))


def _sorted(folder: Path) -> list[Path]:
    with explained(folder):
        return sorted(folder.iterdir(), key=lambda path: path.name)


def _read_arrays(path: Path, size: int, channels: int) -> Images:
    images, labels = _load(path)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise UserError(
            f"{path}: 'images' has the shape {images.shape}, but must have (images, height, width) "
            f"or, with colours, (images, height, width, 1 or 3)."
        )
    if not len(images):
        raise UserError(f"There is no image in {path}; give a file with at least one.")
    if images.shape[1:3] != (size, size):
        height, width = images.shape[1:3]
        raise UserError(
            f"{path}: the images are {height} × {width} pixels, but model.image_size is {size}; "
            f"set it to their size, or scale them."
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iuU":
        raise UserError(
            f"{path}: 'labels' has the shape {labels.shape} and type {labels.dtype}, but must have "
            f"a whole number or a string for each of {len(images)} images."
        )
    pixels = _as_bytes(images, path).reshape(len(images), size, size, -1)
    return Images(_with_channels(pixels, channels), tuple(map(str, labels)))


def _load(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    with explained(path):
        content = path.open("rb")
    try:
        # Arrays of Python objects are refused: they could run any code as they are read.
        with content, np.load(content, allow_pickle=False) as arrays:
            return arrays["images"], arrays["labels"]
    except KeyError as error:
        raise UserError(
            f"{path}: there is no array 'images' or no 'labels'; a .npz file must hold both."
        ) from error
    except Exception as error:  # damage makes the library raise anything
        raise UserError(
            f"{path} is not a whole .npz file of numbers and strings; save 'images' and 'labels' "
            f"with numpy.savez, and no Python objects."
        ) from error


def _as_bytes(images: npt.NDArray[np.generic], path: Path) -> Pixels:
    """Scale to 0…255 what is not so yet: from 0…1, or from 0 to the largest value."""
    if images.dtype == np.uint8:
        return images.astype(np.uint8)
    if images.dtype.kind not in "biuf":
        raise UserError(
            f"{path}: 'images' has the type {images.dtype}, but must hold numbers; save pixels "
            f"from 0 to 255, or from 0 to 1."
        )
    values = images.astype(np.float32)
    if not (np.isfinite(values).all() and values.min() >= 0):
        raise UserError(
            f"{path}: 'images' holds values that are negative or no numbers; save pixels from 0 to "
            f"255, or from 0 to 1."
        )
    return np.rint(values * (255 / max(1.0, float(values.max())))).astype(np.uint8)


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    """(N, H, W, 1 or 3) → (N, C, H, W), in grey or in colours."""
    if pixels.shape[3] == 3 and channels == 1:
        grey = pixels.astype(np.uint32) @ np.array(RED_GREEN_BLUE, np.uint32)
        pixels = ((grey + 32768) >> 16).astype(np.uint8)[..., None]
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], channels))
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
