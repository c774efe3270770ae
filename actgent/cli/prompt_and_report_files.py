"""Prompt files, report files and the progress bar of `actgent eval` and `actgent ci`."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from actgent.errors import ConfigurationError

from .terminal_io import Terminal


def check_output_files(targets: Iterable[str | None]) -> None:
    """Check that reports can be written to these paths, before model calls cost money. None is ignored.

    Raises:
        ConfigurationError: The folder of a report does not exist.
    """
    for target in filter(None, targets):
        if not Path(target).absolute().parent.is_dir():
            raise ConfigurationError(
                f"{target} cannot be written: the folder of this path does not exist; create it"
            )


def read_prompt(target: str) -> str:
    """Return the text of a prompt file.

    Raises:
        ConfigurationError: The file cannot be read as UTF-8.
    """
    try:
        return Path(target).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be read as a prompt: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{target} cannot be read as a prompt: it is not UTF-8") from None


def read_prompts(targets: Iterable[str]) -> dict[str, str]:
    """Return the texts of prompt files by file name without suffix. Without files, return an empty text under an empty name."""
    return {Path(each).stem: read_prompt(each) for each in targets} or {"": ""}


@asynccontextmanager
async def progress_bar(terminal: Terminal, noun: str, total: int) -> AsyncGenerator[Progress | None, None]:
    """Yield a progress bar for `total` items; None if standard output is no terminal. `noun` is the name of the items."""
    if not terminal.is_live:
        yield None
        return
    columns = (TextColumn(noun), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal.console, auto_refresh=False, transient=True) as bar:
        bar.add_task(noun, total=total)
        yield bar


def save_report(path: str, text: str) -> None:
    """Write a report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
