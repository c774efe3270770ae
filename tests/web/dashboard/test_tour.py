"""The tour of the dashboard in the documentation: its script creates the pictures of the page."""

import importlib.util
import re
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
KEPT = ROOT / "docs" / "guides" / "pictures"
MEASURE = """(async data => {
  const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(data), c => c.charCodeAt(0))], { type: "image/webp" }));
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height), drawn = canvas.getContext("2d");
  drawn.drawImage(bitmap, 0, 0);
  const seen = new Set(drawn.getImageData(0, 0, bitmap.width, bitmap.height).data);
  return [bitmap.width, bitmap.height, seen.size];
})"""


async def test_tour_pictures_are_reproducible(stage, screen, tmp_path):
    """The tour creates each picture of the page in the committed size. The new and the committed pictures have content."""
    spec = importlib.util.spec_from_file_location("tour", HERE / "tour.py")
    tour = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tour)
    link, pages = stage
    await tour.take(screen, link, pages, tmp_path)
    for name, (size, _) in tour.PICTURES.items():
        for folder in (tmp_path, KEPT):
            width, height, shades = await measured(screen, folder / f"{name}.webp")
            assert (width, height) == size, (folder, name)
            assert shades > 20, (folder, name)


async def measured(screen, path):
    import base64

    data = base64.b64encode(path.read_bytes()).decode()
    return await screen.run(f"{MEASURE}('{data}')")


def test_tour_page_shows_each_picture():
    """The page shows each committed picture with a text alternative, and all pictures are small."""
    shown = re.findall(
        r"!\[([^\]]+)\]\(pictures/([\w-]+)\.webp\)",
        (ROOT / "docs/guides/dashboard.md").read_text(encoding="utf-8"),
    )
    kept = {path.stem: path.stat().st_size for path in KEPT.iterdir()}
    assert {name for _, name in shown} == kept.keys()
    assert all(len(text) > 20 for text, _ in shown)
    assert sum(kept.values()) < 300_000
