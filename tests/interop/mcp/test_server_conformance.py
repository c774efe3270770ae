"""The server scenarios of the MCP conformance suite against `fixture_server.py`, for both revisions."""

import re

import pytest
import trio

from tests.interop.node.npm import find_node

from .suite import MISSING, PROGRAM, SUITE, scenarios_of

pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")

from .fixture_server import serve_fixture


@pytest.mark.skipif(not SUITE.is_dir(), reason=MISSING)
@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 30), ("2026-07-28", 37)])
async def test_mcp_server_conforms_to_the_suite(tmp_path, revision, count):
    """Each required scenario of the suite passes."""
    if (node := find_node()) is None:
        pytest.skip("the suite needs Node 22 or later")
    with trio.fail_after(180):
        async with serve_fixture() as url:
            command = [node, str(PROGRAM), "server", "--url", url, "--requirements", revision]
            done = await trio.run_process(
                [*command, "-o", str(tmp_path / "results")],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=tmp_path,
            )
    report = done.stdout.decode()
    passed = set(re.findall(r"^✓ (\S+): ", report, re.MULTILINE))
    required = scenarios_of(revision, "server")
    assert len(required) == count
    assert required <= passed, report
