"""Images with labels: arrays in .npz files, or folders with a subfolder for each class."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from qkv.data.files import Paths, check_seekable, listed, opened
from qkv.errors import UserError, missing_package

Pixels = npt.NDArray[np.uint8]
DATA_URL = "data:image/"
MOST_PIXELS = 2**26  # of one image; a small file may say that it has many more
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
RED_GREEN_BLUE = (19595, 38470, 7471)  # in 65536ths: what Pillow's grey is made of


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """Pixels (C, H, W) from 0 to 255, and their class."""

    pixels: Pixels
    label: str


def read_images(paths: Paths, size: int, channels: int) -> list[LabelledImage]:
    """Read labelled images from .npz files, or from folders with a subfolder for each class.

    Arrays must be `size` pixels high and wide; files in folders are scaled to that. All become grey
    (1 channel) or red, green and blue (3). The order is that of the array, or of the names.
    """
    return [
        image
        for path in listed(paths)
        for image in (_read_folder if path.is_dir() else _read_arrays)(path, size, channels)
    ]


def read_image(path: str | Path, size: int, channels: int) -> Pixels:
    """Read an image file, or a data URL (data:image/png;base64,…), scaled to `size`: (C, H, W)."""
    if isinstance(path, str) and path.startswith(DATA_URL):
        return _decode(io.BytesIO(_data(path)), "The image in the data URL", size, channels)
    path = Path(path)
    check_seekable(path)
    with opened(path) as content:
        return _decode(content, str(path), size, channels)


def check_data_url(image: str) -> None:
    """Refuse what is no data URL: a path that a stranger sends must not reach the file system."""
    if not image.startswith(DATA_URL):
        raise UserError(
            "This model reads images; send one as a data URL (data:image/png;base64,…)."
        )


def _data(url: str) -> bytes:
    head, _, content = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(content, validate=True)
    except ValueError as error:
        raise UserError(
            "The image's data URL is damaged; it must look like data:image/png;base64,… ."
        ) from error


def _decode(content: BinaryIO, path: str, size: int, channels: int) -> Pixels:
    try:
        from PIL import Image  # slow to import
    except ImportError as error:
        raise missing_package(f"Reading {path}", "Pillow") from error
    with content:
        try:
            with Image.open(content) as image:
                if image.width * image.height > MOST_PIXELS:  # before they are decompressed
                    raise UserError(
                        f"{path} has {image.width:,} × {image.height:,} pixels, more than "
                        f"{MOST_PIXELS:,}; scale it down first."
                    )
                colours = image.convert("L" if channels == 1 else "RGB")
                scaled = colours.resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(
                f"{path} is not a whole image; fetch it again, or delete it."
            ) from error
    pixels = np.asarray(scaled, np.uint8).reshape(size, size, -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _read_folder(path: Path, size: int, channels: int) -> list[LabelledImage]:
    files = [
        file
        for folder in sorted(path.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    if not files:
        raise UserError(
            f"There is no image in {path}; a folder of images has a subfolder for each class, with "
            f"{', '.join(SUFFIXES)} files in it."
        )
    return [LabelledImage(read_image(file, size, channels), file.parent.name) for file in files]


def _read_arrays(path: Path, size: int, channels: int) -> list[LabelledImage]:
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
    return list(map(LabelledImage, _with_channels(pixels, channels), map(str, labels)))


def _load(path: Path) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    check_seekable(path)
    with opened(path) as content:
        try:
            # Arrays of Python objects are refused: they could run any code as they are read.
            with np.load(content, allow_pickle=False) as arrays:
                return arrays["images"], arrays["labels"]
        except KeyError as error:
            raise UserError(
                f"{path}: there is no array 'images' or no 'labels'; a .npz file must hold both."
            ) from error
        except Exception as error:  # damage makes the library raise anything
            raise UserError(
                f"{path} is not a whole .npz file of numbers and strings; save 'images' and "
                f"'labels' with numpy.savez, and no Python objects."
            ) from error


def _as_bytes(images: npt.NDArray[np.generic], path: Path) -> Pixels:
    """Scale pixels to 0…255 from 0…1, or from 0 to the largest value."""
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
