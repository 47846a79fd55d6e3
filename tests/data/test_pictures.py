from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedekd.data import load_dataset

from .files import own_fails as fails


def picture(path: Path, mode: str = "L", size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 200 if mode in ("L", "I;16") else None).save(path)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for index in range(3):
        picture(tmp_path / "cat" / f"{index}.png")
        picture(tmp_path / "dog" / f"{index}.JPG")
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".git").mkdir()
    data = load_dataset(tmp_path)
    assert (data.x.shape, data.x.dtype, data.labels) == ((6, 1, 4, 6), np.uint8, ("cat", "dog"))
    np.testing.assert_array_equal(data.y, [0, 0, 0, 1, 1, 1])
    picture(tmp_path / "dog" / "colour.png", "RGBA")
    assert load_dataset(tmp_path).x.shape == (7, 3, 4, 6)


def test_deep_grey_pictures_keep_their_high_byte(tmp_path: Path) -> None:
    for name, value in (("a", 0x1234), ("b", 0xFF00)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / name / "x.png")
    data = load_dataset(tmp_path)
    assert data.x[:, 0, 0, 0].tolist() == [0x12, 0xFF]


def test_bad_pictures(tmp_path: Path) -> None:
    fails(tmp_path, "put pictures in a subfolder for each class")
    picture(tmp_path / "cat" / "a.png")
    fails(tmp_path, "one class")
    picture(tmp_path / "dog" / "b.png", size=(5, 4))
    fails(tmp_path, r"b\.png is 5x4 but .*a\.png is 6x4")
    (tmp_path / "dog" / "b.png").write_bytes(b"no picture")
    fails(tmp_path, r"b\.png cannot be read as a picture")
    Image.new("F", (6, 4)).save(tmp_path / "dog" / "c.tiff")
    (tmp_path / "dog" / "b.png").unlink()
    fails(tmp_path, r"c\.tiff has 32-bit pixels")
    fails(tmp_path, "--clients-from 'x' needs", clients_from="x")
