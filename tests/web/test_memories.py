"""Long-term memories over HTTP."""

import json

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    LongTermMemory,
    MemoryFilter,
    MemoryNotFound,
    MemoryReplaced,
    NotRunning,
    PermissionDenied,
    ScriptedLLM,
    Sender,
    ToolCall,
    connect,
    tool,
)

from .conftest import open_served

MEMORIES = "/v1/agents/clerk/memories"


@tool(outside=True, effect="pure")
async def read_page() -> str:
    """Read a page."""
    return "Ada likes snow"


def remember(chat):
    """Read the page if the message asks for it, then remember the text of the message."""
    results = [part for message in chat.messages for part in message.parts if hasattr(part, "tool_name")]
    text = chat.messages[0].parts[0].text
    names = [each.tool_name for each in results]
    if "page" in text and "read_page" not in names:
        return ToolCall("read_page", {})
    return "Noted." if "remember" in names else ToolCall("remember", {"text": text})


@pytest.fixture
async def memories():
    async with LongTermMemory("memory:", now=lambda: 1_790_000_000.0) as opened:
        yield opened


@pytest.fixture
async def remembering(memories):
    """Yield a gateway with an agent that has memories, and an agent that has none."""
    agents = [
        BareAgent("clerk", llm=ScriptedLLM(remember), tools=[read_page], long_term_memory=memories),
        BareAgent("helper", llm=ScriptedLLM(["helped"])),
    ]
    async with open_served(agents=agents) as served:
        yield served


async def ask(served, name, verb, path=MEMORIES, status=200, **options):
    async with served.client(name) as client:
        answer = await client.request(verb, path, **options)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def texts(served, name="ada", **query):
    return [each["text"] for each in (await ask(served, name, "GET", params=query))["items"]]


async def test_pages_are_newest_first_and_survive_forgetting(remembering, memories):
    """A cursor stays valid if the last memory of its page is forgotten."""
    for number in range(5):
        await memories.remember(f"fact {number}", owner="ada")
    first = await ask(remembering, "ada", "GET", params={"limit": 2})
    assert [each["text"] for each in first["items"]] == ["fact 4", "fact 3"]
    await memories.forget(first["items"][-1]["id"], owner="ada")
    second = await ask(remembering, "ada", "GET", params={"limit": 2, "after": first["next"]})
    assert [each["text"] for each in second["items"]] == ["fact 2", "fact 1"]
    third = await ask(remembering, "ada", "GET", params={"limit": 2, "after": second["next"]})
    assert ([each["text"] for each in third["items"]], third["next"]) == (["fact 0"], None)


async def test_memories_are_searched_and_filtered(remembering, memories):
    """A search finds words, also in memories that are expired. It does not count as a use."""
    await memories.remember("Ada lives in Paris", owner="ada", valid_until=1.0)
    await memories.remember("Ada drinks tea", owner="ada", kind="habit")
    assert await texts(remembering, q="Paris") == ["Ada lives in Paris"]
    assert await texts(remembering, kind="habit") == ["Ada drinks tea"]
    assert await texts(remembering, until="2000-01-01T00:00:00Z") == []
    assert {each.uses for each in await memories.page(owner="ada")} == {0}


async def test_a_memory_has_its_origin_and_label(remembering):
    """The document has the agent, session and message, and the untrusted sources of the text."""
    async with remembering.client() as ada:
        for number, text in enumerate(("I drink tea", "What the page says")):
            await ada.put(f"/v1/sessions/s{number}", json={"agent": "clerk"})
            path = f"/v1/sessions/s{number}/messages"
            answer = await ada.post(path, json={"input": text}, headers={"prefer": "wait=30"})
            assert answer.status_code == 200, answer.text
    found = (await ask(remembering, "ada", "GET"))["items"]
    labels = {each["text"]: each["sources"] for each in found}
    assert labels == {"I drink tea": [], "What the page says": ["read_page"]}
    assert {each["agent"] for each in found} == {"clerk"}
    assert all(each["session_id"] and each["message_id"] and each["created_at"] for each in found)
    assert {each["readers"] for each in found} == {None}


async def test_an_update_replaces_a_memory_once(remembering, memories):
    """The same key is one change. Without it, the second editor of a version gets the id of the newer one."""
    made = await memories.remember("Ada lives in London", owner="ada", metadata={"actgent.sources": "web"})
    path, body = f"{MEMORIES}/{made.id}", {"text": "Ada lives in Paris", "is_kept": True}
    first = await ask(remembering, "ada", "PATCH", path, json=body, headers={"idempotency-key": "k1"})
    again = await ask(remembering, "ada", "PATCH", path, json=body, headers={"idempotency-key": "k1"})
    assert first == again
    assert (first["text"], first["is_kept"], first["sources"]) == ("Ada lives in Paris", True, ["web"])
    late = await ask(remembering, "ada", "PATCH", path, 409, json={"text": "Ada lives in Rome"})
    assert late["replaced_by"] == first["id"]
    found = await ask(remembering, "ada", "GET", path)
    assert [each["text"] for each in found["versions"]] == ["Ada lives in London", "Ada lives in Paris"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": " "},
        {"text": "x" * 8001},
        {"importance": 2},
        {"owner": "bob"},
        {"is_shared": True},
        {"valid_until": "tomorrow"},
    ],
    ids=str,
)
async def test_invalid_changes_are_rejected(remembering, memories, body):
    made = await memories.remember("fact", owner="ada")
    await ask(remembering, "ada", "PATCH", f"{MEMORIES}/{made.id}", 422, json=body)
    assert [each.id for each in await memories.page(owner="ada")] == [made.id]


async def test_memories_are_forgotten_by_id_or_owner(remembering, memories):
    """An id is forgotten with its history. Erasing needs the name of the owner, and deletes keys and marks."""
    made = await memories.remember("one", owner="ada", key="k1")
    await memories.update(made.id, "two", owner="ada")
    await memories.remember("three", owner="ada")
    await memories.mark(Sender("ada"), "place", "7")
    await ask(remembering, "ada", "DELETE", f"{MEMORIES}/{made.id}", 204)
    await ask(remembering, "ada", "DELETE", f"{MEMORIES}/{made.id}", 404)
    assert [each.text for each in await memories.export("ada")] == ["three"]
    await ask(remembering, "ada", "DELETE", status=422)
    erased = await ask(remembering, "ada", "DELETE", params={"owner": "ada"})
    assert erased == {"memories": 1, "sessions": 0}
    assert await memories.marks(Sender("ada")) == {}
    again = await memories.remember("one", owner="ada", key="k1")
    assert again.id != made.id


async def test_erasing_sessions_keeps_those_of_other_owners(remembering, memories):
    """An agent, and a user of the same name, are different owners."""
    await memories.remember("of the user", owner=Sender("ada"))
    await memories.remember("of the agent", owner=Sender("ada", "agent"))
    opener = remembering.runtime.agents.opener("clerk")
    await opener.create(Sender("ada", "agent"), "", session_id="of-agent")
    async with remembering.client() as ada, remembering.client("bob") as bob:
        await ada.put("/v1/sessions/of-user", json={"agent": "clerk"})
        await bob.put("/v1/sessions/of-bob", json={"agent": "clerk"})
    query = {"owner": "ada", "sessions": "true"}
    await ask(remembering, "ada", "DELETE", status=403, params=query)
    assert await ask(remembering, "root", "DELETE", params=query) == {"memories": 1, "sessions": 1}
    left = (await ask(remembering, "root", "GET", "/v1/sessions"))["items"]
    assert sorted(each["id"] for each in left) == ["of-agent", "of-bob"]
    assert [each.text for each in await memories.page(owner=Sender("ada", "agent"))] == ["of the agent"]


async def test_a_token_reaches_only_its_owner(remembering, memories):
    """Memories of another owner, of an agent of the same name, and shared ones are like unknown memories."""
    made = await memories.remember("secret", owner="bob", is_shared=True)
    of_agent = await memories.remember("secret", owner=Sender("ada", "agent"))
    for query in ({"owner": "bob"}, {"owner_kind": "agent"}, {"owner": "ada", "owner_kind": "agent"}):
        for verb, path in (("GET", MEMORIES), ("DELETE", MEMORIES), ("GET", f"{MEMORIES}/{made.id}")):
            await ask(remembering, "ada", verb, path, 403, params={"owner": "ada", **query})
    assert await texts(remembering) == []
    for memory_id in (made.id, of_agent.id):
        answers = []
        for each in (memory_id, "m0"):
            path = f"{MEMORIES}/{each}"
            for verb, more in (("GET", {}), ("DELETE", {}), ("PATCH", {"json": {"text": "mine"}})):
                found = await ask(remembering, "ada", verb, path, 404, **more)
                answers.append({name: value for name, value in found.items() if name != "instance"})
        assert answers[:3] == answers[3:]
    assert await texts(remembering, "root", owner="bob") == ["secret"]
    assert await texts(remembering, "root", owner="ada", owner_kind="agent") == ["secret"]


async def test_memory_endpoints_need_their_scopes(remembering, memories):
    """Reading needs `read`, changes need `chat`, and the list of owners needs `admin`."""
    made = await memories.remember("fact", owner="ada")
    await memories.remember("fact", owner="bob")
    assert await texts(remembering, "watcher") == ["fact"]
    await ask(remembering, "watcher", "DELETE", f"{MEMORIES}/{made.id}", 403)
    await ask(remembering, "watcher", "PATCH", f"{MEMORIES}/{made.id}", 403, json={"text": "x"})
    await ask(remembering, "watcher", "DELETE", status=403, params={"owner": "ada"})
    await ask(remembering, "chatter", "PATCH", f"{MEMORIES}/{made.id}", json={"text": "x"})
    owners = "/v1/agents/clerk/memory-owners"
    await ask(remembering, "ada", "GET", owners, 403)
    first = await ask(remembering, "root", "GET", owners, params={"limit": 1})
    second = await ask(remembering, "root", "GET", owners, params={"after": first["next"]})
    assert [each["owner"] for each in (*first["items"], *second["items"])] == ["ada", "bob"]
    assert second["next"] is None


async def test_agents_say_if_they_have_memories(remembering):
    """An agent without memories, and one that does not run, are a 404."""
    listed = (await ask(remembering, "ada", "GET", "/v1/agents"))["items"]
    assert {each["name"]: each["has_long_term_memory"] for each in listed} == {"clerk": True, "helper": False}
    found = await ask(remembering, "ada", "GET", "/v1/agents/helper/memories", 404)
    assert found["detail"] == "the agent in the path has no long-term memory"
    await ask(remembering, "ada", "GET", "/v1/agents/other/memories", 404)


@pytest.mark.parametrize("after", ["x", "-1", "9" * 30])
async def test_invalid_memory_cursors_are_rejected(remembering, after):
    await ask(remembering, "ada", "GET", status=422, params={"after": after})


async def test_a_time_out_of_range_is_null(remembering, memories):
    await memories.remember("fact", owner="ada", valid_until=1e300)
    (found,) = (await ask(remembering, "ada", "GET"))["items"]
    assert found["valid_until"] is None


async def test_the_python_client_has_the_local_methods(remembering, memories):
    """The client reads and changes memories with the methods of `LongTermMemory`, and raises the same errors."""
    made = await memories.remember("Ada lives in London", owner="ada", kind="home")
    await memories.remember("Ada drinks tea", owner="ada")
    other = await memories.remember("Bob is here", owner="bob")
    await memories.associate(made.id, (await memories.remember("Paris", owner="ada")).id, owner="ada")
    url = remembering.gateway.url
    async with connect(url, token=remembering.tokens["ada"]) as client:
        remote = client.agent("clerk").long_term_memory
        page = await remote.browse(owner="ada", limit=2)
        assert page == await memories.browse(owner="ada", limit=2)
        rest = await remote.browse(owner="ada", after=page.following)
        assert [each.text for each in rest.memories] == ["Ada lives in London"]
        assert [each.id for each in (await remote.browse("London", owner="ada")).memories] == [made.id]
        kind = await remote.browse(owner="ada", filters=MemoryFilter(kinds=["home"]))
        assert [each.id for each in kind.memories] == [made.id]
        with pytest.raises(ConfigurationError, match="one kind"):
            await remote.browse(owner="ada", filters=MemoryFilter(agents=["clerk"]))
        fresh = await remote.update(made.id, "Ada lives in Paris", owner="ada", valid_until=4e9)
        assert fresh == await memories.get(fresh.id, owner="ada")
        with pytest.raises(MemoryReplaced) as replaced:
            await remote.update(made.id, "Ada lives in Rome", owner="ada")
        assert replaced.value.by == fresh.id
        assert await remote.history(made.id, owner="ada") == await memories.history(made.id, owner="ada")
        links = await remote.associations(fresh.id, owner="ada")
        assert links == await memories.associations(fresh.id, owner="ada")
        assert len(links) == 1
        with pytest.raises(MemoryNotFound):
            await remote.history(other.id, owner="ada")
        with pytest.raises(PermissionDenied):
            await remote.browse(owner="bob")
        assert await remote.forget(fresh.id, other.id, owner="ada") == 1
        assert await remote.erase("ada") == 2
        with pytest.raises(MemoryNotFound, match="has no long-term memory"):
            await client.agent("helper").long_term_memory.browse(owner="ada")
        with pytest.raises(NotRunning):
            await client.agent("other").long_term_memory.browse(owner="ada")
    async with connect(url, token=remembering.tokens["root"]) as client:
        remote = client.agent("clerk").long_term_memory
        assert (await remote.owner_page()).owners == ((Sender("bob"), 1),)
        assert await remote.erase("bob", sessions=True) == 1
    assert json.dumps(await memories.owners()) == "[]"
