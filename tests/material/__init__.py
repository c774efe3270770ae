"""Benchmarks on public material that others wrote: LoCoMo, BFCL, tau2-bench and recorded agent runs.

`make material MATERIAL=/folder` runs them. Nothing is fetched and no data is part of the repository:
each benchmark reads files below the given folder, and says where they come from if they are missing.

Each benchmark is a module of this package with two names, which `__main__.py` uses:

- `SOURCE`, a `tables.Source`: the files that it reads, where they come from, and their licence.
- `async def run(folder, *, progress, quick) -> list[Table]`. `folder` is the folder of this benchmark
  (`MATERIAL/locomo`, ...), `progress` takes one line of text about what is done now, and `quick` asks for a small
  sample. A `tables.Table` has a title, column heads, rows of strings, a note, and what was missed of its bars.

Child processes run `python -m tests.material.NAME ...` with the root of the repository as working directory.
"""
