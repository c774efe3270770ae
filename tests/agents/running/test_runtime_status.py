"""Status of a runtime: agents, provider limits, schedules and budgets, and sessions at earlier records."""

from functools import partial

import attrs
import pytest
import trio
import trio.testing

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    FallbackModel,
    Limits,
    OpenAI,
    Priority,
    RateLimitedModel,
    RateLimiter,
    ScriptedLLM,
    SummarizingMemory,
    ToolCall,
    ToolContext,
    Toolset,
    open_runtime,
    tool,
)
from actgent.agents.session_replay import Recording, compare_session
from actgent.errors import NotRunning, SessionExists, SessionNotFound
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.runtime.sessions import session_table


async def test_agent_status():
    """The status has queued messages, running turns, limits, and pending approvals."""
    gate = trio.Event()

    async def answer(chat):
        await gate.wait()
        return "done"

    @tool(approval=True, effect="once")
    def pay() -> str:
        """Pay."""
        return "paid"

    async with open_runtime(journal="memory:") as runtime:
        busy = await runtime.start(
            BareAgent(
                "busy",
                llm=ScriptedLLM(answer),
                inbox_capacity=7,
                session_inbox_capacity=5,
                max_concurrent_sessions=3,
            )
        )
        asking = await runtime.start(BareAgent("asking", llm=ScriptedLLM([ToolCall("pay", {})]), tools=[pay]))
        session = await busy.create_session("ada")
        for text in ("1", "2", "3"):
            await session.chat(text)
        other = await asking.create_session("ada", "pay")
        await other.wait_idle()
        one, two = runtime.statistics()
        gate.set()
        await session.wait_idle()
    assert (one.agent, one.suspended, one.sessions, one.state) == ("asking", 1, 1, "running")
    assert (two.agent, two.inbox.waiting, two.inbox.claimed, two.sessions) == ("busy", 2, 1, 1)
    assert (two.capacity, two.session_capacity, two.concurrency, two.restarts) == (7, 5, 3, 0)


async def test_provider_limits_are_listed_by_model(autojump_clock):
    """Each rate limiter is listed once with its waiting calls by priority. Keys appear only as a short digest."""
    rate_limiter = RateLimiter(requests_per_minute=60, burst=1 / 60)
    shared = {"base_url": "http://127.0.0.1:9", "api_key": "the-secret-key"}
    llm = RateLimitedModel(ScriptedLLM(["ok"], repeat=True), rate_limiter)
    first, second = OpenAI("one", **shared), OpenAI("two", **shared)
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=llm))
        await runtime.start(BareAgent("b", llm=FallbackModel(first, llm)))
        await runtime.start(BareAgent("c", llm=second))
        sessions = [await agent.create_session("ada") for _ in range(4)]
        for session, priority in zip(sessions, ["normal", "normal", "high", "low"], strict=True):
            await session.chat("hello", priority=priority)
            await trio.testing.wait_all_tasks_blocked()  # the call of the first session is admitted first
        limiters = runtime.rate_limiters()
        for session in sessions:
            await session.wait_idle()
        await first.aclose()
        await second.aclose()
    local, scripted = sorted(limiters, key=lambda each: each.name)
    assert local.name.startswith("127.0.0.1:9 ")
    assert len(local.name) == len("127.0.0.1:9 abcd")
    assert "secret" not in repr(limiters)
    assert (scripted.total.running, scripted.total.waiting) == (0, 3)
    (lane,) = scripted.models
    assert lane.waiting == {
        Priority(p).name.lower(): 1 for p in (Priority.NORMAL, Priority.HIGH, Priority.LOW)
    }
    assert (lane.admitted, lane.running, lane.paused) == (1, 0, 0)
    (bucket,) = scripted.buckets
    assert (bucket.kind, bucket.rate, bucket.capacity) == ("requests", 1, 1)
    assert bucket.level < 1


@pytest.mark.parametrize("journal", ["memory:", None])
async def test_schedules_of_all_sessions_are_listed_by_date(journal, monkeypatch):
    """With a journal, the pages include sessions that are not in memory."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 2)
    async with open_runtime(journal=journal) as runtime:
        agents = [await runtime.start(BareAgent(name, llm=ScriptedLLM(["ok"]))) for name in ("a", "b")]
        sessions = [await agents[n % 2].create_session("ada", session_id=f"s{n}") for n in range(5)]
        dates = {}
        for number in range(12):
            delay = 10_000 + 37 * number % 500
            schedule = await sessions[number % 5].schedule(f"no. {number}", after=delay)
            dates[schedule.id] = schedule.at
        listed, after = [], None
        while page := await runtime.schedules(after=after, limit=5):
            listed += page
            after = page[-1]
            assert len(page) <= 5
        with pytest.raises(ConfigurationError, match="limit="):
            await runtime.schedules(limit=0)
    assert [each.schedule.id for each in listed] == sorted(dates, key=dates.get)
    assert {each.agent for each in listed} == {"a", "b"}


async def test_budgets_of_sessions_in_memory_are_listed():
    """The list has bounds, usage and remainder of each session and of its running turn."""
    gate = trio.Event()

    async def answer(chat):
        await gate.wait()
        return "done"

    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(answer), limits=Limits(model_calls=3, tokens=10_000))
        )
        whole = await agent.create_session("ada", session_id="one", limits=Limits(model_calls=9))
        await agent.create_session("bob", session_id="two")
        message = await whole.chat("hello")
        await trio.testing.wait_all_tasks_blocked()
        budgets = runtime.budgets()
        pages = [*runtime.budgets(limit=1), *runtime.budgets(after=budgets[0])]
        gate.set()
        await whole.wait_idle()
        (rest,) = runtime.budgets()
    session, turn = budgets
    assert (session.turn, session.owner, session.limits) == ("", "ada", {"model_calls": 9})
    assert (turn.turn, turn.limits["tokens"], turn.reserved["model_calls"]) == (message, 10_000, 1)
    assert turn.left["model_calls"] == 2
    assert pages == [session, turn]
    assert (rest.spent["model_calls"], rest.left) == (1, {"model_calls": 8})


@pytest.mark.parametrize("other", ["fork", "create", "ensure"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_concurrent_creations_of_one_session_id_succeed_once(tmp_path, other, is_first):
    """The other caller gets SessionExists or the existing session. The session has each record once."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        await agent.run("1", session=await agent.create_session("ada", session_id="s"))
        make = {
            "fork": partial(runtime.fork, "s", new_id="copy"),
            "create": partial(agent.create_session, "ada", session_id="copy"),
            "ensure": partial(agent.ensure_session, "ada", session_id="copy"),
        }
        taken = await refusals(*(make[each] for each in (("fork", other) if is_first else (other, "fork"))))
        copy = await agent.open_session("copy")
        assert [message.text for message in copy.history] in ([], ["1", "one"])
        assert taken == (0 if other == "ensure" and copy.history else 1)


@pytest.mark.parametrize("expected", ["one", "copy"])
async def test_fork_in_a_handler_fails_if_the_id_is_being_created(expected):
    """A handler never waits for the creation of a session, including its own; it gets SessionExists."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        await agent.run("1", session=await agent.create_session("ada", session_id="s"))
        refused = []

        @agent.on_session
        async def fork(session):
            if session.id == "one" or expected == "copy":
                try:
                    await runtime.fork("s", new_id=expected)
                except SessionExists as error:
                    refused.append(error.session_id)

        async with trio.open_nursery() as nursery:
            for session_id in ("one", "two"):
                nursery.start_soon(partial(agent.create_session, "ada", session_id=session_id))
        kinds = [type(record).__name__ for record in await runtime.journal.load(expected)]
    assert (kinds.count("SessionCreatedRecord"), refused) == (1, [expected])


@attrs.define(eq=False)
class Held:
    """A look into the journal that waits, once it was made, until `let` is set."""

    made: trio.Event = attrs.field(factory=trio.Event)
    let: trio.Event = attrs.field(factory=trio.Event)


@pytest.fixture
def hold_looks(monkeypatch):
    """Return a function `hold_looks(journal, session_id)` that holds the first and the second read of a session.

    A test waits for `made`. A journal works in a separate thread, so `wait_all_tasks_blocked` may return before the read.
    """

    def hold(journal, session_id):
        head, looks = journal.head, (Held(), Held())
        waiting = iter(looks)

        async def look(agent, wanted):
            found = await head(agent, wanted)
            if wanted == session_id and (held := next(waiting, None)) is not None:
                held.made.set()
                await held.let.wait()
            return found

        monkeypatch.setattr(journal, "head", look)
        return looks

    return hold


@pytest.mark.parametrize("other", ["create", "ensure"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_session_created_in_a_handler_races_with_a_fork(hold_looks, other, is_first):
    """A handler never waits for the creation of a session. The session that reaches the journal first exists, complete and alone."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        await agent.run("1", session=await agent.create_session("ada", session_id="s"))
        make = {"create": agent.create_session, "ensure": agent.ensure_session}[other]
        looks, taken, done = hold_looks(runtime.journal, "copy"), [], (trio.Event(), trio.Event())

        @agent.on_session
        async def make_copy(session):
            if session.id == "two":
                taken.append(await is_refused(partial(make, "ada", session_id="copy")))
                done[1].set()

        async def fork():
            taken.append(await is_refused(partial(runtime.fork, "s", new_id="copy")))
            done[0].set()

        async with trio.open_nursery() as nursery:
            calls = (fork, partial(agent.create_session, "ada", session_id="two"))
            for call, look in zip(calls, looks, strict=True):
                nursery.start_soon(call)
                await look.made.wait()
            for number in (0, 1) if is_first else (1, 0):
                looks[number].let.set()
                await done[number].wait()
        kinds = [type(record).__name__ for record in await runtime.journal.load("copy")]
        copy = await agent.open_session("copy")
        assert kinds.count("SessionCreatedRecord") == 1
        assert [message.text for message in copy.history] == (["1", "one"] if is_first else [])
        assert sum(taken) == (0 if other == "ensure" and is_first else 1)


async def test_agent_start_waits_for_a_fork_of_its_session(hold_looks):
    """The fork is written while its agent does not run.

    The starting agent waits for it before it creates a session of that id.
    """
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        await agent.run("1", session=await agent.create_session("ada", session_id="s"))
        runtime.stop("a")
        await trio.testing.wait_all_tasks_blocked()
        (forks, creates), refused = hold_looks(runtime.journal, "copy"), []
        creates.let.set()

        async def create():
            refused.append(await is_refused(partial(agent.create_session, "bob", session_id="copy")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(runtime.fork, "s", new_id="copy"))
            await forks.made.wait()
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
            nursery.start_soon(create)
            await trio.testing.wait_all_tasks_blocked()
            assert not creates.made.is_set()
            forks.let.set()
        copy = await agent.open_session("copy", owner="ada")
        kinds = [type(record).__name__ for record in await runtime.journal.load("copy")]
    assert ([message.text for message in copy.history], refused) == (["1", "one"], [True])
    assert kinds.count("SessionCreatedRecord") == 1


async def test_one_of_two_concurrent_forks_is_written_without_their_agent(tmp_path):
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one"])))
        await agent.run("1", session=await agent.create_session("ada", session_id="s"))
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        fork = partial(runtime.fork, "s", new_id="copy")
        assert await refusals(fork, fork) == 1
        assert len(await runtime.journal.load("copy")) == len(await runtime.journal.load("s"))


async def is_refused(call):
    """Make a call. Return True if it raised because the session exists."""
    try:
        await call()
    except SessionExists:
        return True
    return False


async def refusals(*calls):
    """Make calls concurrently. Return how many raised because the session exists."""
    refused = []

    async def make(call):
        if await is_refused(call):
            refused.append(call)

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(make, call)
    return len(refused)


async def test_a_session_is_rebuilt_and_forked_while_its_agent_works(tmp_path):
    """The session may be rebuilt at any record. The copy is independent, and the original does not change."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["one", "two", "else"])))
        session = await agent.create_session("ada", session_id="s")
        for text in ("1", "2"):
            await session.chat(text)
            await session.wait_idle()
        records = await runtime.journal.load("s")
        place = next(n for n, record in enumerate(records, 1) if type(record).__name__ == "MessageEndRecord")
        before = await runtime.rebuild("s", to=place)
        assert [message.text for message in before.history] == ["1", "one"]
        assert (await runtime.rebuild("s")).history == session.history
        copy = await runtime.fork("s", to=place, new_id="copy")
        assert (copy.agent, copy.session_id, copy.owner, copy.records) == ("a", "copy", "ada", place)
        with pytest.raises(SessionExists):
            await runtime.fork("s", new_id="copy")
        other = await agent.open_session("copy")
        await other.chat("2 again")
        await other.wait_idle()
        assert [message.text for message in other.history] == ["1", "one", "2 again", "else"]
        assert await runtime.journal.load("s") == records
        with pytest.raises(SessionNotFound):
            await runtime.rebuild("nobody")
        with pytest.raises(ConfigurationError, match="has no record 99"):
            await runtime.fork("s", to=99)
    async with open_runtime() as bare:
        with pytest.raises(ConfigurationError, match="no journal"):
            await bare.rebuild("s")
    assert attrs.asdict(copy)["closed"] is False


async def test_session_is_compared_with_the_running_code(tmp_path):
    """The comparison needs neither model nor tools. Nothing of the session or of the running agent changes."""
    called = []

    @tool(effect="once")
    async def pay() -> str:
        """Pay."""
        called.append(1)
        return "paid"

    url = f"sqlite:///{tmp_path}/j.db"
    async with open_runtime(journal=url) as runtime:
        llm = ScriptedLLM([ToolCall("pay", {}), "done"])
        agent = await runtime.start(BareAgent("a", llm=llm, tools=[pay]))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("pay")
        await session.wait_idle()
        records = await runtime.journal.load("s")
        assert await compare_session(runtime, "s") is None
        assert await compare_session(runtime, "s", to=3) is None
        assert await runtime.journal.load("s") == records
        assert called == [1]
        with pytest.raises(ConfigurationError, match="has no record 99"):
            await compare_session(runtime, "s", to=99)
    async with open_runtime(journal=url) as runtime:
        with pytest.raises(NotRunning):
            await compare_session(runtime, "s")
        await runtime.start(
            BareAgent("a", llm=ScriptedLLM([]), tools=[pay], system_prompt="You are another one.")
        )
        found = await compare_session(runtime, "s")
    assert "system prompt" in str(found)


async def test_unfinished_session_causes_no_difference():
    """With a pending approval and after a mode change no record differs; with other code records do."""

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    script = [ToolCall("pay", {}), "done", ToolCall("pay", {})]
    async with open_runtime(journal="memory:") as runtime:
        modes = Modes(commands=False)
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(script), tools=[pay], modes=modes))
        session = await agent.create_session("ada", session_id="s")
        await session.set_mode("act")
        for approve in (True, False):
            await session.chat("pay")
            await session.wait_idle()
            if approve:
                await session.answer(session.approvals[0], Approve())
                await session.wait_idle()
                await session.set_mode("plan", by="admin", force=True)
                await session.set_mode("act", by="admin", force=True)
        assert session.status == "suspended"
        records = await runtime.journal.load("s")
        for number in range(1, len(records) + 1):
            assert await compare_session(runtime, "s", to=number) is None, number
    other = BareAgent("a", llm=ScriptedLLM([]), tools=[pay], system_prompt="Another one.", modes=modes)
    assert await Recording("s", "a", tuple(records)).compare(other) is not None


@tool
async def pay_deps(context: ToolContext[dict]) -> str:
    """Pay."""
    return f"paid by {context.deps['who']}"


class Shop(Toolset):
    """A tool that a toolset provides while it is connected."""

    name = "shop"
    required = True
    connections = 0

    async def run(self, publish):
        self.connections += 1
        publish([pay_deps])
        await trio.sleep_forever()


async def test_comparison_does_not_change_the_running_agent():
    """Its toolsets stay connected, its deps are not created again, and its log stays redacted."""
    made, shop = [], Shop()

    async def deps(session):
        made.append(session.id)
        return {"who": session.id}

    script = [ToolCall("pay_deps", {}), "done", ToolCall("pay_deps", {}), "done again"]
    async with open_runtime(journal="memory:", redact=lambda text: text) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(script), tools=[shop], deps=deps))
        session = await agent.create_session("ada", session_id="s")
        await agent.run("pay", session=session)
        assert await compare_session(runtime, "s") is None
        assert (shop.connections, made) == (1, ["s"])
        assert agent._failure_logger.is_redacted
        reply = await agent.run("pay", session=session)
        results = [part for each in session.history for part in each.tool_results]
    assert (reply.text, [each.content for each in results]) == ("done again", ["paid by s"] * 2)


async def test_comparison_calls_no_model_for_summaries():
    requests = []

    def summarize(chat):
        requests.append(chat)
        return "they said numbers"

    memory = SummarizingMemory(llm=ScriptedLLM(summarize), keep=2, trigger=4)
    async with open_runtime(journal="memory:") as runtime:
        llm = ScriptedLLM(["yes"], repeat=True)
        agent = await runtime.start(BareAgent("a", llm=llm, memory=memory))
        session = await agent.create_session("ada", session_id="s")
        for number in range(8):
            await agent.run(str(number), session=session)
        await trio.testing.wait_all_tasks_blocked(0.01)
        before = len(requests)
        assert before > 0
        assert await compare_session(runtime, "s") is None
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(requests) == before
