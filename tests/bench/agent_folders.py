"""Load an agent from a folder with many instruction files."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import Figures, expect

ROUNDS = 5
_BRAIN = "---\nname: clerk\nrole: a clerk with many forms\n---\nFill in the right one.\n"
_FORM = """\
---
schemaTemplate:
  type: object
  properties:
    title: {{type: string, description: "what form {0} is about"}}
    count: {{type: integer, minimum: 0}}
  required: [title]
---
Someone asks for form {0}.
"""


@contextmanager
def _folder(count: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "instructions").mkdir()
        (folder / "brain.md").write_text(_BRAIN, encoding="utf-8")
        for number in range(count):
            (folder / "instructions" / f"form{number:03}.md").write_text(
                _FORM.format(number), encoding="utf-8"
            )
        yield folder


def measure_loading(load: Callable[[Path], int], count: int) -> Figures:
    """Return the shortest time of several rounds. The first round fills the caches of disk and libraries."""
    with _folder(count) as folder:
        times = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            found = load(folder)
            times.append(time.perf_counter() - started)
            expect(seen=found, wanted=count, what="instructions")
    return {"load_ms": min(times) * 1e3, "first_ms": times[0] * 1e3}
