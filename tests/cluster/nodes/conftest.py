"""Fixtures for a cluster of nodes that a test may kill."""

import os

import pytest

pytest.register_assert_rewrite("tests.cluster.nodes.schedules", "tests.cluster.nodes.client_scenarios")

from .conversations import open_nodes  # noqa: E402 - assertion rewriting is registered before the import
from .pairs import open_pair  # noqa: E402 - as above

RUNS = 20 if os.environ.get("ACTGENT_SOAK") else 1
"""Number of runs of each test that kills a process."""


def pytest_generate_tests(metafunc):
    """Repeat each test with nodes `RUNS` times."""
    if RUNS > 1 and "nodes" in metafunc.fixturenames:
        metafunc.fixturenames.append("run")
        metafunc.parametrize("run", range(RUNS))


@pytest.fixture
async def nodes(process_server, open_cluster):
    """Yield a `Nodes` that starts and kills nodes of a separate cluster."""
    async with open_cluster() as cluster, open_nodes(process_server, cluster) as started:
        yield started


@pytest.fixture
async def pair(open_cluster):
    """Yield a `Pair` of nodes of a separate cluster."""
    async with open_pair(open_cluster) as opened:
        yield opened
