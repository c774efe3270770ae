"""A node of another release: `release.py READS JOURNAL POOL NAME`.

It runs `node_process.py` with a release that reads record formats up to READS.
"""

import runpy
import sys
from pathlib import Path

from actgent.journal.postgres import cluster_pool_layout

cluster_pool_layout.READS = int(sys.argv.pop(1))
runpy.run_path(str(Path(__file__).with_name("node_process.py")), run_name="__main__")
