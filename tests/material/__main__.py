"""Run benchmarks on public material; `make material MATERIAL=/folder ARGS="--only bfcl"` calls this.

Nothing is downloaded. Put the files of each benchmark into a folder with its name below the given folder.
Exit codes: 0 if all benchmarks ran and reached their bars, 1 if a bar was missed, 2 if material is missing.
"""

import argparse
import importlib
import logging
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import trio
from rich import box
from rich.console import Console
from rich.table import Table as Drawn

from .tables import MaterialMissing, Table

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NAMES = tuple(
    name for name in ("locomo", "bfcl", "tau2", "agentdojo", "recorded") if (HERE / f"{name}.py").exists()
)
MISSED, MISSING = 1, 2
"""Exit codes: a bar was missed, and material is missing."""

console = Console()
if not console.is_terminal:
    console = Console(width=200)


def main() -> int:
    """Run the chosen benchmarks, print their tables, and return the exit code."""
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in NAMES}
    options = _options(modules)
    logging.basicConfig(level=logging.CRITICAL)
    codes = [_run(name, modules[name], options) for name in options.only or NAMES]
    return max(codes)


def _options(modules: dict[str, ModuleType]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make material",
        usage='make material MATERIAL=/folder ARGS="[--only NAME ...] [--quick] [--write-docs]"',
        description=__doc__,
        epilog=_sources(modules),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", metavar="MATERIAL", help="folder with a folder per benchmark")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[], help="some benchmarks; default: all")
    parser.add_argument("--quick", action="store_true", help="a small sample of each")
    parser.add_argument("--write-docs", action="store_true", help="write the tables to docs/benchmarks.md")
    options = parser.parse_args()
    if not options.folder:
        parser.print_help()
        sys.exit(MISSING)
    if options.quick and options.write_docs:
        parser.error("--write-docs takes the whole material: leave out --quick")
    return options


def _sources(modules: dict[str, ModuleType]) -> str:
    parts = ["files, where they come from, and their licences:"]
    for name, module in modules.items():
        source = module.SOURCE
        parts.append(f"\n{name}: {source.title}")
        parts += [f"  MATERIAL/{name}/{pattern}" for pattern in source.files]
        lines = [f"from: {source.origin}", f"licence: {source.licence}"]
        parts += [textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ") for line in lines]
    return "\n".join(parts)


def _run(name: str, module: ModuleType, options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute() / name
    if missing := module.SOURCE.missing(folder):
        _tell_missing(name, folder, missing, module.SOURCE.origin)
        return MISSING
    progress = Console(stderr=True)
    try:
        with progress.status(f"{name}: reading the material") as status:
            tables = trio.run(
                _run_module, module, folder, options.quick, lambda line: status.update(f"{name}: {line}")
            )
    except MaterialMissing as error:
        console.print(f"{name}: {error}")
        return MISSING
    for table in tables:
        _draw(table)
    if options.write_docs:
        _write_docs(name, tables)
    failures = [line for table in tables for line in table.failures]
    for line in failures:
        console.print(f"[red]{name}: missed: {line}[/]")
    return MISSED if failures else 0


async def _run_module(module: ModuleType, folder: Path, quick: bool, progress) -> list[Table]:
    found: list[Table] = await module.run(folder, progress=progress, quick=quick)
    return found


def _tell_missing(name: str, folder: Path, missing: list[str], origin: str) -> None:
    console.print(
        f"{name}: skipped, because {folder} lacks {', '.join(missing)}. From: {origin}",
        markup=False,
        soft_wrap=True,
    )


def _draw(table: Table) -> None:
    drawn = Drawn(title=table.title, box=box.SIMPLE_HEAD, title_justify="left")
    for number, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)
    if table.note:
        console.print(table.note, markup=False)


def _write_docs(name: str, tables: list[Table], path: Path = ROOT / "docs" / "benchmarks.md") -> None:
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    page, report = importlib.import_module("benchmark_page"), importlib.import_module("report")
    when = f"The values were measured in {datetime.now(tz=UTC):%B %Y}: {report.machine()}."
    page.write_part(name, "\n\n".join([*(table.markdown() for table in tables), when]), path)


if __name__ == "__main__":
    sys.exit(main())
