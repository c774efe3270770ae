"""Benchmarks on public third-party material: LoCoMo, BFCL, tau2-bench and recorded agent runs.

`make material MATERIAL=/folder` runs them. Nothing is downloaded, and the repository contains no data of them.
Each benchmark reads files below the given folder. If files are missing, its error names their origin.

Each benchmark is a module of this package with two names, which `__main__.py` uses:

- `SOURCE`, a `tables.Source`: the files of the benchmark, their origin, and their licence.
- `async def run(folder, *, progress, quick) -> list[Table]`. `folder` is the folder of this benchmark
  (`MATERIAL/locomo`, ...), `progress` takes one line of text about the current step, and `quick` selects a small
  sample. A `tables.Table` has a title, column heads, rows of strings, a note, and the missed bars.

Child processes run `python -m tests.material.NAME ...` with the root of the repository as working directory.
"""
