"""The user's folder of pictures: one subfolder for each class, all pictures of one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedekd.data.formats import Raw
from fedekd.errors import FedekdError
from fedekd.files import check_name, failed_read

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L")


def read_folder(folder: Path) -> Raw:
    """8-bit pictures [N, H, W], or [N, H, W, 3] as soon as one of them is coloured; 16-bit ones lose the low byte."""
    files = {sub.name: pictures_in(sub) for sub in sorted(folder.iterdir()) if sub.is_dir() and sub.name[0] != "."}
    files = {name: paths for name, paths in files.items() if paths}
    for name in files:
        check_name(folder / name)
    if not files:
        raise FedekdError(
            f"{folder} holds no data: put pictures in a subfolder for each class, or one .npz or .csv for each client"
        )
    images = read_pictures([path for found in files.values() for path in found])
    return Raw(images, np.repeat(list(files), [len(found) for found in files.values()]))


def read_pictures(paths: Sequence[Path]) -> np.ndarray:
    """Pictures of one size, 8-bit [N, H, W], or [N, H, W, 3] as soon as one of them is coloured."""
    images = [read_picture(path) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape[:2] != images[0].shape[:2]:
            raise FedekdError(
                f"{path} is {_size(image)} but {paths[0]} is {_size(images[0])}; "
                "bring all pictures to one size (width x height)"
            )
    if any(image.ndim == 3 for image in images):
        images = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    return np.stack(images)


def pictures_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES and not p.name.startswith("."))


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


def read_picture(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            if picture.mode in ("I", "F"):
                raise FedekdError(f"{path} has 32-bit pixels; save it with 8 or 16 bits, or give all rows in an .npz")
            if picture.mode.startswith("I;16"):
                return (np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8)
            return np.asarray(picture.convert("L" if picture.mode in GREY else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise failed_read(
            path, error, FedekdError(f"{path} cannot be read as a picture ({error}); replace or remove it")
        ) from None
