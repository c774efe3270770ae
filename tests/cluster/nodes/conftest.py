"""A cluster of nodes that may be killed."""

import os

import pytest

pytest.register_assert_rewrite("tests.cluster.nodes.schedules", "tests.cluster.nodes.client_scenarios")

from .conversations import open_nodes  # noqa: E402 - what is rewritten is named before it is imported

RUNS = 20 if os.environ.get("ACTGENT_SOAK") else 1
"""Of each test that kills something."""


def pytest_generate_tests(metafunc):
    """Run what has nodes as often as is wanted."""
    if RUNS > 1 and "nodes" in metafunc.fixturenames:
        metafunc.fixturenames.append("run")
        metafunc.parametrize("run", range(RUNS))


@pytest.fixture
async def nodes(lives, open_cluster):
    """What starts nodes of a cluster of the test's own, and kills them."""
    async with open_cluster() as cluster, open_nodes(lives, cluster) as started:
        yield started
