"""pytest plugin that runs saved seeds as tests: `pytest_plugins = ["actgent.simulation.pytest_plugin"]` in `conftest.py`.

Each file `*.seed` that `actgent simulate` has saved is one test. The test passes once the program no longer fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .parallel_seed_runs import read_seed
from .run_report import render_story
from .single_seed_run import play


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> "pytest.Collector | None":
    """Collect a seed file (`*.seed`) as a file of tests: the pytest hook `pytest_collect_file`."""
    if file_path.suffix != ".seed":
        return None
    found: pytest.Collector = SeedFile.from_parent(parent, path=file_path)
    return found


class SeedFile(pytest.File):
    """Collector of a saved seed file, which contains one test."""

    def collect(self) -> Iterator[pytest.Item]:
        yield SeedTest.from_parent(self, name=f"seed {self.path.stem}")


class SeedTest(pytest.Item):
    """Test that runs one saved seed, and fails if the program still fails."""

    def runtest(self) -> None:
        seed, settings, left_out = read_seed(self.path)
        outcome = play(seed, settings, left_out)
        if outcome.problems:
            raise SeedFailed([*render_story(outcome.story.events), "", *outcome.problems])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, SeedFailed):
            return "\n".join(excinfo.value.lines)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class SeedFailed(Exception):
    """Error: the program still fails under a saved seed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines[-1])
        self.lines = lines
        """The story and the problems."""
