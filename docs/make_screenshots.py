"""Take the pictures in docs/images of a run's and a study's report: python docs/make_screenshots.py RUN STUDY

`make pictures` takes them of `make demo` and of the paper's study, and draws the terminal.

Needs Chromium and playwright, as the browser tests do, and looks best where the font Inter is installed.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from fedekd.report.page import write_page

IMAGES = Path(__file__).parent / "images"
SHOTS = {  # name: which report, width, height, scale, colours
    "report-light.png": ("run", 1180, 1290, 1, "light"),
    "report-dark.png": ("run", 1180, 1290, 1, "dark"),
    "report-phone.png": ("run", 390, 1400, 2, "light"),
    "study.png": ("study", 1180, 1470, 1, "light"),
}


def main(run: str, study: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {
            name: write_page(source, Path(folder) / f"{name}.html") for name, source in (("run", run), ("study", study))
        }
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (which, width, height, scale, scheme) in SHOTS.items():
            size = {"width": width, "height": height}
            page = browser.new_page(viewport=size, device_scale_factor=scale, color_scheme=scheme)
            page.goto(pages[which].as_uri())
            page.wait_for_selector("html[data-drawn=yes]")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(256).save(IMAGES / name, optimize=True)
            print(f"{name}: {(IMAGES / name).stat().st_size / 1000:.0f} kB")
            page.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
