"""Search and trends in process and over the wire: the same arguments give the same values."""

import pytest

from actgent import ConfigurationError, PermissionDenied, SearchFilter

from .conftest import open_served


@pytest.fixture
async def both():
    """Yield the runtime of a served index with one conversation, and a client of its gateway."""
    async with open_served(index=True) as served, served.connect() as client:
        session = await client.agent("clerk").create_session(description="where is the treasure")
        await session.wait_idle()
        await served.runtime.index.wait_filled()
        yield served.runtime, client


async def test_search_is_the_same(both):
    runtime, client = both
    for query in (SearchFilter(role="user", max_cost=1.0), SearchFilter(since=1.0, has_errors=False)):
        local = await runtime.search("treas*", query, limit=1)
        remote = await client.search("treas*", query, limit=1)
        assert [hit.message_id for hit in local.hits] == [hit.message_id for hit in remote.hits]
        assert [(hit.marks, hit.snippet) for hit in local.hits] == [
            (hit.marks, hit.snippet) for hit in remote.hits
        ]
        assert (local.following, local.is_complete) == (remote.following, remote.is_complete)
    following = await client.search("treas*", after=remote.following)
    assert [hit.role for hit in following.hits] == ["user"]


async def test_trends_are_the_same(both):
    runtime, client = both
    assert await client.trends("agent", since=1.0, agent="clerk") == await runtime.trends(
        "agent", since=1.0, agent="clerk"
    )
    assert (await client.trends("model", until=1.0)).items == ()


async def test_errors_are_the_same(both):
    runtime, client = both
    for each in (runtime, client):
        with pytest.raises(ConfigurationError, match="no word"):
            await each.search("...")
    with pytest.raises(PermissionDenied):
        await client.search("x", SearchFilter(owner="someone else"))
