"""A request that any node may answer, and that kills each node which begins with it."""

import pytest
import trio

from actgent import RemoteError

from .pairs import PATIENCE


async def test_a_list_that_kills_its_node_kills_two(nodes):
    """Who asked hears why, and does not ask again; what others ask meanwhile is answered."""
    names = ("one", "two", "three", "four")
    with trio.fail_after(2 * PATIENCE):
        for name in names:
            await nodes.start(name)
        async with nodes.cluster.connect(patience=PATIENCE) as client:
            session = await client.agent("clerk").create_session("ada", session_id="s1")
            with pytest.raises(RemoteError) as refused:
                await client.sessions(prefix="kill")
            assert (refused.value.kind, refused.value.status) == ("poison", 500)
            assert "2 nodes have gone" in str(refused.value)
            assert [each.session_id for each in await client.sessions(prefix="s")] == [session.id]
            assert (await client.agent("clerk").run("hello", session=session)).text == "you said: hello"
        assert sum(nodes.running[name].poll() is None for name in names) == 2
