"""W8: what `import actgent` costs, beside the libraries that every program of this kind loads."""

import statistics
import subprocess
import sys
import time

from measure import Figures

LIBRARIES = "import trio, attrs, cattrs, msgpack"


FIRST_AGENT = "from actgent import ReActAgent, ScriptedLLM, tool"


def floor(count: int) -> Figures:
    return {"import_s": _cost(LIBRARIES, count)}


def framework(count: int) -> Figures:
    return {"import_s": _cost("import actgent", count), "first_agent_s": _cost(FIRST_AGENT, count)}


def _cost(code: str, count: int) -> float:
    """Seconds of `code`, less an interpreter that does nothing; the two are started by turns."""
    empty, full = [], []
    for _ in range(count):
        empty.append(_seconds("pass"))
        full.append(_seconds(code))
    return statistics.median(full) - statistics.median(empty)


def _seconds(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun
