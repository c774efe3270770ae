"""What a client of a cluster hears where what it asks for is not there."""

import pytest
import trio

from actgent import BareAgent, BrokerLost, NotRunning, connect

from .pairs import PATIENCE, Echo, make_clerk


async def test_an_agent_that_no_node_hosts_is_named_with_its_pool_and_those_that_are_there(open_cluster):
    """Whether it is asked for by its name, or has a session already; nobody is sent to open it in a process of his own."""
    clerk = make_clerk(Echo())
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(patience=1) as client:
            async with cluster.node(clerk):
                with pytest.raises(
                    NotRunning, match=f"no node of pool '{cluster.pool}' hosts it; did you mean 'clerk'"
                ):
                    await client.agent("clerks").create_session("ada")
                session = await client.agent("clerk").create_session("ada")
            async with cluster.node(BareAgent("other", llm=Echo())):
                with pytest.raises(
                    NotRunning, match=r"'clerk' is not running: no node of pool .* hosts it; start a node"
                ):
                    await session.chat("hello")


async def test_who_asks_a_pool_that_nobody_has_served_hears_what_to_do(open_cluster, caplog):
    """No queue is there for its requests: it is a node that makes them. The log says so at once, as one may be just starting."""
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, connect(cluster.broker, pool="nobodys", patience=0.1) as client:
            with pytest.raises(
                BrokerLost, match="no node of this pool has run yet; start one, or look at pool="
            ):
                await client.agents()
    assert "no node of pool nobodys has run yet, and it is waited for: is pool= right?" in caplog.messages
