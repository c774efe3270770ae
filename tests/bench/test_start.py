"""Modules that the first agent of a program imports. The number is the same on each run, so a slower start shows in CI."""

import json
import subprocess
import sys

import pytest

FIRST_AGENT = """
import json, sys
from actgent import BareAgent, ScriptedLLM

agent = BareAgent("tutor", role="a maths tutor", llm=ScriptedLLM(["Hello."]))
assert agent.run_sync("Hi").text == "Hello."
print(json.dumps(sorted(sys.modules)))
"""
REPRS = """
import gc, json
from actgent import BareAgent, ScriptedLLM

classes = [each for each in gc.get_objects() if isinstance(each, type) and str(each.__module__).startswith("actgent.")]
methods = {f"{each.__module__}.{each.__qualname__}": vars(each).get("__repr__") for each in classes}
code = {name: getattr(method, "__code__", None) for name, method in methods.items()}
compiled = [name for name, each in code.items() if each and each.co_filename.startswith("<attrs generated")]
print(json.dumps(sorted(compiled)))
"""
MODULES = 252
"""Modules of the package after the first answer. Change it together with the cause, and name the cause in the commit."""
LIBRARIES = {"attr", "attrs", "msgpack", "orjson", "outcome", "sortedcontainers", "trio"}
"""Libraries that the first agent needs. Each further one takes 2 to 20 ms."""
INDIRECT = {"cython_runtime", "idna", "sniffio", "typing_extensions"}


@pytest.fixture(scope="module")
def imported():
    return run(FIRST_AGENT)


def run(code):
    """Run code in a new process, and return the JSON value that it prints."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def test_the_first_agent_imports_as_many_modules_as_before(imported):
    """3 % more modules of the package fail, and 3 % fewer must be stored."""
    assert len([name for name in imported if name.startswith("actgent")]) == pytest.approx(MODULES, rel=0.03)


def test_the_first_agent_imports_no_further_library(imported):
    """Schemas, templates, SDKs, databases and converters of journals are imported at their first use."""
    roots = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert {root for root in roots if not root.startswith("_")} - INDIRECT - {"actgent"} == LIBRARIES


def test_no_class_compiles_a_repr():
    """Attrs takes 0.3 ms for each `__repr__` that it compiles: derive the class from `FieldRepr`, with `repr=False`."""
    assert run(REPRS) == []
