"""The A2A compatibility kit against `fixture_server.py`, over both bindings.

The kit is not a package: `.github/workflows/test.yml` checks it out to `build/a2a-tck` and makes an environment in its `.venv`.
"""

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import trio

from .fixture_server import serve_fixture

KIT = Path(__file__).parents[3] / "build" / "a2a-tck"
PYTHON = KIT / ".venv" / "bin" / "python"
MISSING = "the A2A kit is not in build/a2a-tck: .github/workflows/test.yml checks it out"
CONTRADICTORY = "CORE-SEND-003"
"""A requirement that the kit describes as an error of the server, and tests as a success."""


async def run_kit(tmp_path, url, *options):
    """Return the results of the kit's tests by class and name: `passed`, `skipped` or the text of the failure."""
    report = tmp_path / "report.xml"
    command = [PYTHON, "-m", "pytest", "tests/compatibility", f"--sut-host={url}"]
    command += ["--transport=jsonrpc,http_json", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    with trio.fail_after(300):
        done = await trio.run_process(
            [*map(str, command), *options],
            cwd=KIT,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert report.exists(), done.stdout.decode()
    return {
        (case.get("classname"), case.get("name")): _result(case) for case in ET.parse(report).iter("testcase")
    }


def _result(case):
    """Return the result of a test. An expected failure is reported as skipped."""
    for each in case:
        if each.tag in ("failure", "error"):
            return each.get("message")
        if each.tag == "skipped":
            return each.get("message") if each.get("type") == "pytest.xfail" else "skipped"
    return "passed"


def failures(results):
    return {name: text for name, text in results.items() if text not in ("passed", "skipped")}


pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)


async def test_a2a_server_conforms_to_the_kit(tmp_path):
    """All tests pass except the contradictory one, for which the server returns the error of the description."""
    async with serve_fixture() as url:
        results = await run_kit(tmp_path, url)
    failed = failures(results)
    assert {name.partition("[")[2].rpartition("-")[0] for _, name in failed} == {CONTRADICTORY}, failed
    assert all("use an input mode that the agent card lists" in text for text in failed.values())
    assert "passed" in results.values()


async def test_a_card_with_all_media_types_passes_the_contradictory_test(tmp_path):
    async with serve_fixture(input_modes=["*/*"]) as url:
        results = await run_kit(tmp_path, url, "-k", CONTRADICTORY)
    assert not failures(results)
    assert list(results.values()).count("passed") == 2  # one result of each binding
