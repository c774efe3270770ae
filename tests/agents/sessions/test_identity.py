"""The identity of a session: one agent, one owner, and an id of bounded printable text."""

import unicodedata

import pytest
import trio

from actgent import (
    ApprovalNotFound,
    Approve,
    BareAgent,
    ConfigurationError,
    RouterAgent,
    ScriptedLLM,
    Sender,
    SessionExists,
    SessionNotFound,
    ToolCall,
    ToolContext,
    WrongOwner,
    open_runtime,
    tool,
)
from actgent.journal.journal_url import open_journal


def bare(name="shop"):
    return BareAgent(name, llm=ScriptedLLM(["ok"], repeat=True))


@pytest.fixture(params=[None, "memory:"])
async def agent(request):
    """A running agent, with a journal and without one."""
    async with open_runtime(journal=request.param) as runtime:
        yield await runtime.start(bare())


# --- owners ------------------------------------------------------------------------------


async def test_a_session_of_another_owner_is_not_ensured(agent):
    """Mallory cannot get Ada's session by its id, and the error does not reveal that it exists."""
    session = await agent.create_session("ada", "my pin is 1234", session_id="s")
    await session.wait_idle()
    with pytest.raises(WrongOwner) as caught:
        await agent.ensure_session("mallory", "s")
    assert isinstance(caught.value, SessionNotFound | LookupError)
    assert str(caught.value).startswith("agent 'shop' has no session 's' of owner 'mallory': ")
    assert await agent.ensure_session("ada", "s") is session
    assert await agent.ensure_session(Sender("ada"), "s") is session


async def test_owner_of_another_kind_is_another_owner(agent):
    """An agent with the name of a user is not that user."""
    await agent.create_session(Sender("ada", "agent"), session_id="s")
    with pytest.raises(WrongOwner):
        await agent.ensure_session("ada", "s")


async def test_open_checks_the_owner_if_passed(agent):
    """Without an owner the id is enough, as for administrators."""
    session = await agent.create_session("ada", session_id="s")
    assert await agent.open_session("s") is session
    assert await agent.open_session("s", owner="ada") is session
    with pytest.raises(WrongOwner):
        await agent.open_session("s", owner="mallory")
    with pytest.raises(ConfigurationError, match="owner"):
        await agent.open_session("s", owner="")


async def test_an_owner_is_checked_after_a_restart():
    """The owner is read from the journal."""
    async with open_journal("memory:") as journal:
        async with open_runtime(journal=journal) as runtime:
            await (await runtime.start(bare())).create_session("ada", session_id="s")
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(bare())
            for _ in range(2):
                with pytest.raises(WrongOwner):
                    await agent.ensure_session("mallory", "s")
            assert (await agent.ensure_session("ada", "s")).owner == Sender("ada")


@pytest.mark.parametrize("name", ["ada\0", "\ud800", "ada\udfff"], ids=ascii)
async def test_owner_name_changed_by_the_database_does_not_match(agent, name):
    """A database stores `ada` with NUL as `ada?`, which is a different owner."""
    for owner in (name, Sender(name)):
        for call in (agent.create_session(owner), agent.ensure_session(owner, "s")):
            with pytest.raises(ConfigurationError, match="which databases cannot store"):
                await call
    assert (await agent.create_session("ada?", session_id="s")).owner.name == "ada?"


async def test_request_of_another_owner_does_not_load_a_session():
    """A request by another owner loads nothing, attaches no handler and resumes nothing."""
    async with open_journal("memory:") as journal:
        async with open_runtime(journal=journal) as runtime:
            await (await runtime.start(bare())).create_session("ada", session_id="s")
        async with open_runtime(journal=journal) as runtime:
            agent, opened = await runtime.start(bare()), []
            agent.on_session(lambda session: opened.append(session.id))
            for ask in (agent.ensure_session("mallory", "s"), agent.open_session("s", owner="mallory")):
                with pytest.raises(WrongOwner, match="no session 's' of owner 'mallory'"):
                    await ask
            assert opened == []
            await agent.open_session("s", owner="ada")
            assert opened == ["s"]
            with pytest.raises(SessionNotFound):
                await agent.open_session("other", owner="ada")


async def test_child_session_of_another_owner_is_rejected(agent):
    """Another owner would decide its approvals and pay its calls."""
    parent = await agent.create_session("ada", session_id="parent")
    with pytest.raises(WrongOwner):
        await agent.create_session("mallory", parent=parent)
    with pytest.raises(WrongOwner):
        await agent.ensure_session("mallory", "child", parent=parent)
    await agent.create_session("ada", parent=parent)
    await agent.create_session(Sender("helper", "agent"), parent=parent)


# --- ids that are taken ------------------------------------------------------------------


async def test_duplicate_session_id_raises_session_exists(agent):
    """The error is a `ConfigurationError`, so handlers of that class still catch it."""
    await agent.create_session("ada", session_id="s")
    with pytest.raises(SessionExists, match="'s'") as caught:
        await agent.create_session("bob", session_id="s")
    assert isinstance(caught.value, ConfigurationError)
    assert (caught.value.agent, caught.value.session_id) == ("shop", "s")


async def test_one_of_many_creations_of_an_id_wins(agent):
    """The other callers get an error, at any interleaving."""
    won, lost = [], []

    async def create(owner):
        try:
            won.append(await agent.create_session(owner, "hello", session_id="s"))
        except SessionExists:
            lost.append(owner)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(create, f"user {number}")
    assert (len(won), len(lost)) == (1, 4)
    await won[0].wait_idle()
    assert [message.text for message in won[0].history] == ["hello", "ok"]


# --- ids as text -------------------------------------------------------------------------

BAD = {
    "a line end": "a\nb",
    "a carriage return": "a\rb",
    "a tabulator": "a\tb",
    "NUL": "a\0b",
    "an escape sequence": "a\x1b[31mb",
    "a C1 control": "a\x85b",
    "a line separator": "a\u2028b",
    "bidi": "a\u202eb",
    "an isolate": "a\u2066b",
    "a zero-width space": "a\u200bb",
    "a byte order mark": "a\ufeffb",
    "half a surrogate pair": "a\ud800b",
    "unassigned": "a\u0378b",
    "a no-break space": "a\u00a0b",
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize(
    ("name", "give"),
    [
        ("session_id", lambda agent, _, value: agent.create_session("ada", session_id=value)),
        ("session_id", lambda agent, _, value: agent.ensure_session("ada", value)),
        ("message_id", lambda _, session, value: session.chat("hi", message_id=value)),
        ("task_id", lambda _, session, value: session.delegate("shop", "do it", task_id=value)),
        ("key", lambda _, session, value: session.schedule("wake up", after=1000, key=value)),
    ],
)
async def test_ids_are_printable_text(name, give, value):
    """Ids reach logs and terminals. The error names the character and its position, and is printable."""
    async with bare() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=f"{name}=.*character 2, U\\+[0-9A-F]{{4}}") as caught:
            await give(agent, session, value)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["", "  ", "x" * 201])
async def test_blank_and_long_ids_are_rejected(value):
    """The error does not repeat the whole id."""
    async with bare() as agent:
        with pytest.raises(ConfigurationError, match="session_id") as caught:
            await agent.create_session("ada", session_id=value)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["x" * 200, "Ünïcode 会议", "a/b\\c 'd' \"e\"", "🦊", "e\u0301"])
async def test_ids_may_contain_any_printable_characters(agent, value):
    """The ids have letters of all scripts, signs and spaces."""
    assert unicodedata.category(value[0])[0] in "LPS"
    session = await agent.create_session("ada", session_id=value)
    assert await agent.open_session(value) is session
    await session.chat("hi", message_id=value)


@pytest.mark.parametrize("name", [*BAD.values(), "x" * 201])
def test_agent_names_are_printable_text(name):
    """Names reach logs and terminals."""
    with pytest.raises(ConfigurationError, match="name="):
        bare(name)


# --- one id, two agents ------------------------------------------------------------------


class Bookkeeping:
    """Two agents that pay once for each order, and the payments by key."""

    def __init__(self):
        self.paid = []
        """(agent, order, effect key) of each call that ran."""

    def agent(self, name, *more_tools):
        @tool(effect="once")
        async def pay(order: str, context: ToolContext) -> str:
            """Pay."""
            self.paid.append((name, order, context.idempotency_key))
            return f"paid by {name}"

        def model(chat):
            last = chat.messages[-1]
            return f"I am {name}" if last.role == "tool" else ToolCall("pay", {"order": "7"}, "c1")

        return BareAgent(name, llm=ScriptedLLM(model, delay=0.1), tools=[pay, *more_tools])


@pytest.fixture(params=["none", "memory", "sqlite", "postgres"])
def journal_url(request, tmp_path):
    """An address of each kind of journal, and None."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db"}[request.param]


async def get(agent):
    """As programs do that open a session with a user's name."""
    try:
        return await agent.open_session("ada")
    except LookupError:
        return await agent.create_session("ada", session_id="ada")


async def test_two_agents_have_a_session_of_one_id_each(journal_url):
    """The sessions share nothing, each has its own effect once, and a restart changes nothing."""
    books = Bookkeeping()
    expected = {name: ["Pay order 7 at {}.", "", "", "I am {}"] for name in ("shop", "bank")}
    async with open_runtime(journal=journal_url) as runtime:
        agents = [await runtime.start(books.agent(name)) for name in ("shop", "bank")]
        sessions = [await get(agent) for agent in agents]
        for session in sessions:
            await session.chat(f"Pay order 7 at {session.agent_name}.")
        for session in sessions:
            await session.wait_idle()
            name = session.agent_name
            texts = [message.text for message in session.history]
            assert texts == [text.format(name) for text in expected[name]]
            assert [r.content for m in session.history for r in m.tool_results] == [f"paid by {name}"]
        assert sorted(name for name, *_ in books.paid) == ["bank", "shop"]
        assert len({key for *_, key in books.paid}) == 2
    if journal_url is None or journal_url == "memory:":
        return
    async with open_runtime(journal=journal_url) as runtime:
        for name in ("shop", "bank"):
            agent = await runtime.start(books.agent(name))
            session = await get(agent)
            texts = [message.text for message in session.history]
            assert texts == [text.format(name) for text in expected[name]]
        assert len(books.paid) == 2


async def test_agent_does_not_find_the_session_of_another_agent(journal_url):
    """It can neither open the session nor answer in it, and the id is free for it."""
    async with open_runtime(journal=journal_url) as runtime:
        doctor, shop = [await runtime.start(bare(name)) for name in ("doctor", "shop")]
        theirs = await doctor.create_session("ada", "I am pregnant.", session_id="ada")
        await theirs.wait_idle()
        with pytest.raises(SessionNotFound):
            await shop.open_session("ada")
        with pytest.raises(SessionNotFound):
            await shop.run("hi", session=theirs)
        with pytest.raises(SessionNotFound):
            async with shop.stream("hi", session=theirs):
                pass
        with pytest.raises(SessionNotFound):
            async with shop.follow(theirs):
                pass
        ours = await shop.ensure_session("mallory", "ada")
        assert (ours.agent_name, ours.owner.name, len(ours.history)) == ("shop", "mallory", 0)
        assert await doctor.open_session("ada") is theirs


async def test_approvals_of_equal_calls_have_different_ids(journal_url):
    """An approval for one agent does not permit the call of another."""
    paid = []

    def clerk(name):
        @tool(approval=True)
        async def pay(order: str) -> str:
            """Pay."""
            paid.append(name)
            return "paid"

        llm = ScriptedLLM([ToolCall("pay", {"order": "7"}, "c1"), "done"])
        return BareAgent(name, llm=llm, tools=[pay])

    async with open_runtime(journal=journal_url) as runtime:
        shop, bank = [await runtime.start(clerk(name)) for name in ("shop", "bank")]
        for agent in (shop, bank):
            await (await agent.create_session("ada", "pay", session_id="ada")).wait_idle()
        (of_shop,), (of_bank,) = await shop.approvals(), await bank.approvals()
        assert (of_shop.agent, of_bank.agent) == ("shop", "bank")
        assert of_shop.id != of_bank.id
        for asked in (of_shop, of_shop.id):
            with pytest.raises(ApprovalNotFound):
                await bank.answer(asked, Approve())
        await shop.answer(of_shop, Approve())
        await (await shop.open_session("ada")).wait_idle()
        assert paid == ["shop"]
        assert [each.agent for each in await runtime.approvals()] == ["bank"]


async def test_decision_applies_to_the_session_that_requested_it(autojump_clock):
    """A session below it, of another agent, has the same id."""
    paid = []

    def clerk(name):
        @tool(approval=True)
        async def pay(order: str) -> str:
            """Pay."""
            paid.append(name)
            return "paid"

        llm = ScriptedLLM([ToolCall("pay", {"order": "7"}, "c1"), "done"])
        return BareAgent(name, llm=llm, tools=[pay])

    async with open_runtime() as runtime:
        shop, bank = [await runtime.start(clerk(name)) for name in ("shop", "bank")]
        above = await shop.create_session("ada", "pay", session_id="ada")
        below = await bank.create_session("ada", "pay", session_id="ada", parent=above)
        await above.wait_idle()
        await below.wait_idle()
        assert [each.agent for each in above.approvals] == ["shop", "bank"]
        await above.answer(above.approvals[1], Approve())
        await below.wait_idle()
        assert paid == ["bank"]


# --- children ----------------------------------------------------------------------------


def worker(name="worker", *, until=trio.lowlevel.checkpoint):
    """Return an agent that executes its task when it is released."""

    async def answer(chat):
        await until()
        return f"did {_last(chat)}"

    return BareAgent(name, llm=ScriptedLLM(answer), grace=0)


def _last(chat):
    return chat.messages[-1].parts[0].text


def boss(name):
    return BareAgent(name, llm=ScriptedLLM(["heard"], repeat=True))


def reports_to(agent):
    """Return a channel with the reports of other agents to this one."""
    send, receive = trio.open_memory_channel(100)

    @agent.on_message
    def hear(message):
        if message.sender.kind == "agent":
            send.send_nowait(message.text)

    return receive


async def test_tasks_with_the_same_id_are_separate(journal_url):
    """Two agents with a session of one id, and two sessions of one agent, delegate a task with the same id to the same agent."""
    gate = trio.Event()
    async with open_runtime(journal=journal_url) as runtime:
        await runtime.start(worker(until=gate.wait))
        shop, bank = [await runtime.start(boss(name)) for name in ("shop", "bank")]
        channels = [reports_to(agent) for agent in (shop, bank)]
        sessions = [
            await shop.create_session("ada", session_id="ada"),
            await bank.create_session("ada", session_id="ada"),
            await shop.create_session("bob", session_id="bob"),
        ]
        for number, session in enumerate(sessions):
            assert await session.delegate("worker", f"job {number}", task_id="t") == "t"
            assert await session.delegate("worker", f"job {number}", task_id="t") == "t"
        children = [session.children for session in sessions]
        assert [len(each) for each in children] == [1, 1, 1]
        assert len({each[0].id for each in children}) == 3
        gate.set()
        with trio.fail_after(60):
            for number in (0, 1):
                received = {await channels[number].receive() for _ in range(2 - number)}
                jobs = (0, 2) if number == 0 else (1,)
                assert received == {f"Task t was done by agent 'worker':\ndid job {job}" for job in jobs}


async def test_first_task_has_its_task_id_as_session_id(journal_url):
    """So the delegating agent finds its session. Other sessions with this id are not changed."""
    async with open_runtime(journal=journal_url) as runtime:
        helper = await runtime.start(worker(until=trio.sleep_forever))
        lead = await runtime.start(boss("lead"))
        mallorys = await helper.create_session("mallory", session_id="u")
        session = await lead.create_session("ada", session_id="ada")
        await session.delegate("worker", "a hole", task_id="t")
        await session.delegate("worker", "a wall", task_id="u")
        child = await helper.open_session("t")
        assert child.parent is session
        assert await helper.open_session("u") is mallorys
        assert len(mallorys.history) == 0
        assert {each.id for each in session.children} >= {"t"}
        assert await session.cancel_task("u")
        assert await session.cancel_task("t")
        assert session.children == ()
        assert mallorys.status == "idle"


async def test_same_task_id_works_for_two_agents(journal_url):
    """Both tasks complete, are reported once each, and are stopped together."""
    gates = [trio.Event()]

    async def may_begin():
        await gates[-1].wait()

    async with open_runtime(journal=journal_url) as runtime:
        for name in ("digger", "builder"):
            await runtime.start(worker(name, until=may_begin))
        lead = await runtime.start(boss("lead"))
        reports = reports_to(lead)
        session = await lead.create_session("ada", session_id="ada")
        for name in ("digger", "builder"):
            await session.delegate(name, "it", task_id="t")
        assert len(session.children) == 2
        gates[0].set()
        with trio.fail_after(60):
            texts = [await reports.receive() for _ in range(2)]
        assert sorted(texts) == [
            f"Task t was done by agent {name!r}:\ndid it" for name in ("builder", "digger")
        ]
        gates.append(trio.Event())
        for name in ("digger", "builder"):
            await session.delegate(name, "it", task_id="again")
        assert await session.cancel_task("again")
        assert session.children == ()


async def test_equal_calls_of_an_agent_tool_use_separate_sessions(journal_url):
    """Two parent agents have a session `ada` and call the same agent with the same call id."""
    helper = worker("helper")

    def lead(name):
        llm = ScriptedLLM([ToolCall("helper", {"task": f"for {name}"}, "c1"), "done"])
        return BareAgent(name, llm=llm, tools=[helper.as_tool()])

    async with open_runtime(journal=journal_url) as runtime:
        for name in ("shop", "bank"):
            agent = await runtime.start(lead(name))
            session = await agent.create_session("ada", "go", session_id="ada")
            await session.wait_idle()
            results = [r.content for message in session.history for r in message.tool_results]
            assert results == [f"did for {name}"]


async def test_routes_of_two_routers_use_separate_sessions(journal_url):
    """Both routers have a session with the same id and owner, and route to the same agent by the same action."""
    clerk = worker("clerk")
    route = '{"top_level_intent": "ACTION", "second_level_intent": "help", "response": "one moment"}'

    async with open_runtime(journal=journal_url) as runtime:
        for name in ("shop", "bank"):
            router = RouterAgent(name, llm=ScriptedLLM([route] * 2), routes={"help": clerk})
            await runtime.start(router)
            session = await router.create_session("ada", session_id="ada")
            for text in ("one", "two"):
                await session.chat(f"{text} at {name}")
                await session.wait_idle()
            (child,) = session.children
            assert [message.text for message in child.history][::2] == [
                f"{text} at {name}" for text in ("one", "two")
            ]


async def test_erasing_a_session_affects_only_its_tree(journal_url):
    """If several agents have a session with its id, the call must name the agent."""
    async with open_runtime(journal=journal_url) as runtime:
        shop, bank = [await runtime.start(boss(name)) for name in ("shop", "bank")]
        helper = await runtime.start(worker())
        for agent in (shop, bank):
            session = await agent.create_session("ada", "hello", session_id="ada")
            await agent.create_session("ada", session_id="child", parent=session)
            await helper.create_session("ada", session_id=f"below {agent.name}", parent=session)
            await session.wait_idle()
        with pytest.raises(ConfigurationError, match=r"'bank', 'shop'"):
            await runtime.delete_session("ada")
        await runtime.delete_session("ada", agent="shop")
        for agent, session_id in ((shop, "ada"), (shop, "child"), (helper, "below shop")):
            with pytest.raises(LookupError):
                await agent.open_session(session_id)
        for agent, session_id in ((bank, "ada"), (bank, "child"), (helper, "below bank")):
            assert (await agent.open_session(session_id)).status == "idle"
        await runtime.delete_session("ada")
        if runtime.journal is not None:
            assert await runtime.journal.sessions() == []
