"""Search and trends over HTTP."""

import pytest

from .conftest import open_served


@pytest.fixture
async def indexed():
    """Yield a gateway with an index, and a session of each of two owners."""
    async with open_served(index=True) as served:
        for owner in ("ada", "bob"):
            async with served.client(owner) as client:
                await client.put(f"/v1/sessions/of-{owner}", json={"agent": "clerk"})
                await client.post(
                    f"/v1/sessions/of-{owner}/messages",
                    json={"input": f"the treasure of {owner}"},
                    headers={"prefer": "wait=10"},
                )
        await served.runtime.index.wait_filled()
        yield served


async def search(served, name, **query):
    async with served.client(name) as client:
        answer = await client.get("/v1/search", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_owner_finds_only_texts_of_its_own_sessions(indexed):
    page = await search(indexed, "ada", q="treasure")
    assert [(item["session_id"], item["role"]) for item in page["items"]] == [
        ("of-ada", "assistant"),
        ("of-ada", "user"),
    ]
    assert page["next"] is None
    assert page["is_complete"] is True
    assert (await search(indexed, "ada", q="bob"))["items"] == []
    everything = await search(indexed, "root", q="treasure", role="user")
    assert [item["owner"] for item in everything["items"]] == ["bob", "ada"]
    one = await search(indexed, "root", q="treasure", owner="bob", role="user")
    assert [item["owner"] for item in one["items"]] == ["bob"]


async def test_a_hit_has_the_matches_and_figures_of_its_session(indexed):
    (hit,) = (await search(indexed, "ada", q='"treasure of"', role="user"))["items"]
    assert [hit["snippet"][start:stop] for start, stop in hit["marks"]] == ["treasure", "of"]
    assert (hit["agent"], hit["turns"], hit["errors"], hit["cost"]) == ("clerk", 1, 0, 0.0)
    assert hit["at"].endswith("Z")


async def test_search_without_words_uses_the_filters_alone(indexed):
    page = await search(indexed, "root", owner="bob")
    assert [(item["session_id"], item["marks"]) for item in page["items"]] == [("of-bob", [])] * 2
    assert await search(indexed, "root", owner="bob", q="") == page


async def test_hits_are_paged(indexed):
    first = await search(indexed, "ada", q="treasure", limit=1)
    second = await search(indexed, "ada", q="treasure", limit=1, after=first["next"])
    assert [page["items"][0]["role"] for page in (first, second)] == ["assistant", "user"]


async def test_hits_are_filtered_by_time_and_figures(indexed):
    assert (await search(indexed, "ada", q="treasure", since="2100-01-01T00:00:00Z"))["items"] == []
    assert (await search(indexed, "ada", q="treasure", until="2000-01-01T00:00:00Z"))["items"] == []
    assert (await search(indexed, "ada", q="treasure", min_cost="0.5"))["items"] == []
    assert len((await search(indexed, "ada", q="treasure", max_cost="0.5", has_errors="false"))["items"]) == 2


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"q": "-"}, "no word"),
        ({"q": "x", "since": "yesterday"}, "since="),
        ({"q": "x", "since": "2026-01-01"}, "time zone"),
        ({"q": "x", "min_cost": "nan"}, "min_cost="),
        ({"q": "x", "min_cost": "-1"}, "min_cost="),
        ({"q": "x", "after": "never"}, "after="),
        ({"q": "x", "role": "nobody"}, "role="),
    ],
)
async def test_invalid_queries_name_the_parameter(indexed, query, word):
    async with indexed.client() as ada:
        answer = await ada.get("/v1/search", params=query)
    assert answer.status_code == 422
    assert word in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/search?q=x&owner=bob", "/v1/trends?owner=bob"])
async def test_search_of_another_owner_needs_the_scope_admin(indexed, path):
    async with indexed.client() as ada:
        assert (await ada.get(path)).status_code == 403


@pytest.mark.parametrize("path", ["/v1/search?q=x", "/v1/trends"])
async def test_search_without_an_index_names_the_remedy(served, path):
    async with served.client() as ada:
        answer = await ada.get(path)
    assert answer.status_code == 422
    assert "--index" in answer.json()["detail"]


async def test_trends_count_the_sessions_of_the_caller(indexed):
    async with indexed.client() as ada, indexed.client("root") as root:
        own = (await ada.get("/v1/trends", params={"by": "owner"})).json()
        everything = (await root.get("/v1/trends", params={"by": "owner"})).json()
    assert [item["name"] for item in own["items"]] == ["ada"]
    assert own["total"]["turns"] == 1
    assert sorted(item["name"] for item in everything["items"]) == ["ada", "bob"]
    assert everything["total"]["turns"] == 2
    assert own["total"]["p50"] is not None
