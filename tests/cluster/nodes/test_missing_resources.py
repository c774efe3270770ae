"""Errors of a cluster client for missing agents and unreachable nodes."""

import pytest
import trio

from actgent import BareAgent, NotRunning, ServerUnreachable

from .pairs import PATIENCE, Echo, make_clerk


async def test_error_for_a_missing_agent_lists_the_hosted_agents(open_cluster):
    """The error lists the hosted agents, both for an agent name and for an existing session of that agent."""
    clerk = make_clerk(Echo())
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(retry_timeout=5) as client:
            async with cluster.node(clerk):
                with pytest.raises(NotRunning, match=r"'clerks' is not running.*did you mean 'clerk'"):
                    await client.agent("clerks").create_session("ada")
                session = await client.agent("clerk").create_session("ada")
            async with cluster.node(BareAgent("other", llm=Echo())):
                with pytest.raises(NotRunning, match="'clerk' is not running"):
                    await session.chat("hello")


async def test_request_to_a_cluster_without_nodes_was_not_sent(open_cluster):
    """No gateway accepts the connection, so the error states that a retry is safe."""
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.connect(url="http://127.0.0.1:1", retry_timeout=0.2) as client,
        ):
            with pytest.raises(ServerUnreachable) as unreachable:
                await client.agents()
    assert not unreachable.value.was_sent
