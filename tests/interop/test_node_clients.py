"""Clients from npm against a gateway: OpenAI SDK, Vercel AI SDK, AG-UI client, A2A SDK.

The scripts in `node/` check each outcome.
"""

import json

import pytest
import trio

from .node.npm import MODULES, find_node

SCRIPTS = {
    "openai": ("openai", 16),
    "ag_ui": ("@ag-ui/client", 8),
    "vercel": ("ai", 8),
    "a2a": ("@a2a-js/sdk", 16),
}
"""Package and number of cases of each script."""


@pytest.mark.parametrize("name", SCRIPTS)
async def test_each_case_of_the_client_passes(served, name):
    package, count = SCRIPTS[name]
    if not (MODULES / package).is_dir():
        pytest.skip(f"{package} from npm is not installed: `make test` does that")
    if (node := find_node()) is None:
        pytest.skip("the packages need Node 22 or later")
    with trio.fail_after(120):
        done = await trio.run_process(
            [node, str(MODULES.parent / f"{name}.mjs")],
            env={"URL": served.gateway.url, "TOKEN": served.tokens["ada"], "OTHER": served.tokens["bob"]},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    outcomes = json.loads(done.stdout.decode().splitlines()[-1])
    assert [(case, why) for case, why in outcomes.items() if why] == []
    assert len(outcomes) == count
