"""W8: `from actgent import BareAgent` and the first answer, against the libraries that all such programs import."""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from measure import Figures

LIBRARIES = "import trio, attrs, cattrs, msgpack\n"
FIRST_AGENT = """
from actgent import BareAgent, ScriptedLLM

agent = BareAgent("tutor", llm=ScriptedLLM(["Hello."]))
assert agent.run_sync("Hi").text == "Hello."
"""
REPORT = """
import json, os, sys, time

pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps([time.process_time(), len(sys.modules), pages * os.sysconf("SC_PAGE_SIZE") / 1e6]))
"""


def floor(count: int) -> Figures:
    return _cost(LIBRARIES, count)


def framework(count: int) -> Figures:
    return _cost(FIRST_AGENT, count)


def _cost(code: str, count: int) -> Figures:
    """Return the CPU of `code` minus that of an empty interpreter, alternating; modules and memory are those of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        _run(code, folder)  # compiles all modules
        runs = [(_run("", folder), _run(code, folder)) for _ in range(count)]
    full = [each for _, each in runs]
    return {
        "first_agent_s": statistics.median(run[0] for run in full)
        - statistics.median(empty[0] for empty, _ in runs),
        "modules": statistics.median(run[1] for run in full),
        "rss_mb": statistics.median(run[2] for run in full),
    }


def _run(code: str, folder: str) -> list[float]:
    """Run code in a child process. Return its CPU in seconds, its modules and its memory in MB. `folder` has the bytecode."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT],
        env=environment | {"PYTHONPYCACHEPREFIX": folder},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)
