"""Toolsets of running agents: they connect, disconnect, change, fail and hang."""

from itertools import pairwise

import orjson
import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    Deferred,
    EnvelopedTool,
    Mode,
    Modes,
    OpenAI,
    ScriptedLLM,
    StaticToolset,
    ToolCall,
    Toolset,
    open_runtime,
    open_toolset,
    tool,
)
from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.events import ToolsetConnected, ToolsetLost
from actgent.testing import open_provider


@tool(thread=False, effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(thread=False, effect="pure")
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


class Remote(Toolset):
    """Tools that connect after `delay` seconds, and change or end when the test requests it."""

    def __init__(self, name, tools, delay=0.0, *, required=False):
        self.name = name
        self.first = tools
        self.delay = delay
        self.required = required
        self.log = []
        self.publish = None
        self.end = trio.Event()
        self.error = None

    async def run(self, publish):
        self.log.append("open")
        try:
            await trio.sleep(self.delay)
            publish(self.first)
            self.publish = publish
            await self.end.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.log.append("closed")


async def ask(session, text="go"):
    replies = []
    session.on_conversation(lambda reply: replies.append(str(reply)))
    await session.chat(text)
    await session.wait_idle()
    return replies[-1]


def offered(llm):
    return [spec.name for spec in llm.chats[-1].tools]


def notices(session):
    return [m.parts[0].text for m in session.history if m.sender.name == "toolsets"]


async def test_tools_of_a_toolset_are_offered_and_run():
    """Toolset tools follow the agent's own tools.

    `find_tools` and `call_tool` are offered only if the tools can change.
    """
    llm = ScriptedLLM([[ToolCall("multiply", {"a": 6, "b": 7})], "42"])
    async with BareAgent("tutor", llm=llm, tools=[add, StaticToolset("maths", [multiply])]) as agent:
        session = await agent.create_session("ada")
        assert await ask(session) == "42"
        assert offered(llm) == ["add", "multiply", "read_result"]
        assert notices(session) == []
    assert agent.tools.get("multiply").origin == "maths"


async def test_a_block_opens_and_closes_them_in_one_task():
    """A toolset's resources are closed when the agent's block has ended."""
    remote = Remote("far", [multiply])
    for _ in range(2):
        async with BareAgent("tutor", llm=ScriptedLLM(["hello"]), tools=[remote]):
            assert remote.log == ["open"]
        assert remote.log == ["open", "closed"]
        remote.log.clear()


async def test_agents_share_one_toolset_source(autojump_clock):
    """One source runs for all agents that use it, derived or not, until the last one ends."""
    remote = Remote("far", [add, multiply], 1)
    llm = ScriptedLLM(["hello"], repeat=True)
    async with open_runtime() as runtime:
        one = await runtime.start(BareAgent("one", llm=llm, tools=[remote]))
        two = await runtime.start(
            BareAgent("two", llm=llm, tools=[remote.filtered(["add"]).prefixed("far_")])
        )
        assert remote.log == ["open"]
        assert (one.tools.get("multiply") is None, two.tools.get("far_add") is None) == (False, False)
        runtime.stop("one")
        await trio.sleep(1)
        assert remote.log == ["open"]
        runtime.stop("two")
        await trio.sleep(1)
        assert remote.log == ["open", "closed"]


async def test_hanging_toolset_delays_the_start_by_half_a_second(autojump_clock):
    """The start waits for the healthy toolsets and at most half a second longer for the hanging one."""
    healthy = [Remote(f"r{n}", [], delay) for n, delay in enumerate((0.4, 0.8, 1.2, 1.5))]
    hanging = Remote("hangs", [multiply], 1000)
    started = trio.current_time()
    llm = ScriptedLLM(["hello"])
    async with BareAgent("tutor", llm=llm, tools=[*healthy, hanging]) as agent:
        assert 1.5 < trio.current_time() - started <= 2.0, "half a second, with what the start itself takes"
        session = await agent.create_session("ada")
        await ask(session)
        assert notices(session) == ["Tools of hangs are not available now."]


async def test_late_tools_come_as_a_notice_and_can_be_called(autojump_clock):
    """The prompt prefix is unchanged.

    `call_tool` runs late tools, and handlers see the name of the tool itself.
    """
    late = Remote("far", [multiply], 3)
    llm = ScriptedLLM(
        ["first", [ToolCall("call_tool", {"name": "multiply", "arguments": {"a": 6, "b": 7}})], "42", "new"]
    )
    async with BareAgent("tutor", llm=llm, tools=[Remote("near", [add]), late]) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await ask(session)
        before = offered(llm)
        assert before == ["find_tools", "call_tool", "add", "read_result"]
        await trio.sleep(5)
        assert await ask(session) == "42"
        assert offered(llm) == before
        assert notices(session)[-1].startswith("Further tools are available now;")
        assert "multiply" in notices(session)[-1]
        assert [(r.tool_name, r.content) for r in results] == [("multiply", "42")]
        other = await agent.create_session("bob")
        await ask(other)
        assert offered(llm) == [*before[:-1], "multiply", "read_result"], (
            "a session that begins now is offered what is there now"
        )
        assert notices(other) == []


async def test_failed_toolset_is_reported_and_reconnected(autojump_clock):
    """Calls to the toolset fail with the reason.

    An event and a notice name it, and it reconnects after a pause.
    """
    remote = Remote("github", [multiply])
    call = [ToolCall("multiply", {"a": 2, "b": 2})]
    llm = ScriptedLLM([call, "4", call, "pity", call, "again 4"])
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent("tutor", llm=llm, tools=[remote]))
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        assert await ask(session) == "4"
        remote.error = ConnectionResetError("gone")
        remote.end.set()
        await trio.testing.wait_all_tasks_blocked()
        remote.end, remote.error = trio.Event(), None
        assert await ask(session) == "pity"
        assert "tools of github are not available: its connection failed" in results[-1].error
        assert notices(session) == ["Tools of github are not available now."]
        await trio.sleep(2)
        assert await ask(session) == "again 4"
        assert notices(session)[-1] == "All tools that you were offered are available as they were."
        assert remote.log == ["open", "closed", "open"]
        seen = [
            e
            for e in [events.receive_nowait() for _ in range(len_of(events))]
            if type(e).__name__.startswith("Toolset")
        ]
    assert [(type(e), getattr(e, "error", "")) for e in seen] == [
        (ToolsetConnected, ""),
        (ToolsetLost, "ConnectionResetError"),
        (ToolsetConnected, ""),
    ]


def len_of(events):
    return events.statistics().waiting if hasattr(events, "statistics") else len(events._backlog.events)


async def test_reconnect_pauses_grow(autojump_clock):
    """A toolset that always fails is retried after 1, 2, 4 ... and at most 60 seconds."""
    times = []

    class Broken(Toolset):
        name = "broken"

        async def run(self, publish):
            times.append(trio.current_time())
            raise OSError("no such program")

    async with BareAgent("tutor", llm=ScriptedLLM([]), tools=[Broken()]):
        await trio.sleep(400)
    pauses = [round(later - earlier) for earlier, later in pairwise(times)]
    assert pauses[:9] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("delay", [1000, None])
async def test_missing_required_toolset_fails_the_start(autojump_clock, delay):
    """A silent or failing required toolset fails the start after the connect timeout. A later start works."""

    class Needed(Remote):
        async def run(self, publish):
            if self.delay is None:
                raise OSError("no such program")
            await super().run(publish)

    needed = Needed("needed", [add], delay, required=True)
    async with open_runtime() as runtime:
        agent = BareAgent("tutor", llm=ScriptedLLM(["hello"]), tools=[needed])
        started = trio.current_time()
        with pytest.raises(ToolsetUnavailable, match="needed"):
            await runtime.start(agent)
        assert trio.current_time() - started == pytest.approx(10)
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.count == 0
        needed.delay = 1
        await runtime.start(agent)
        assert agent.tools.get("add") is not None


async def test_a_cancelled_start_releases_all_resources(autojump_clock):
    """After the cancellation no agent and no toolset is running."""
    remote = Remote("far", [add], 1000)
    async with open_runtime() as runtime:
        with trio.move_on_after(2):
            await runtime.start(BareAgent("tutor", llm=ScriptedLLM([]), tools=[remote]))
        await trio.testing.wait_all_tasks_blocked()
        assert (runtime.count, remote.log) == (0, ["open", "closed"])


async def test_session_opened_during_connecting_waits_for_the_toolset(autojump_clock):
    """The session is answered after the toolsets have connected, with their tools."""
    llm = ScriptedLLM(["hello"])
    agent = BareAgent("tutor", llm=llm, tools=[Remote("far", [multiply], 3)])
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(runtime.start, agent)
        await trio.sleep(1)
        session = await agent.create_session("ada", "early")
        await session.wait_idle()
        assert offered(llm) == ["find_tools", "call_tool", "multiply", "read_result"]


async def test_session_keeps_its_offered_tools_after_a_change(autojump_clock):
    """A session keeps its offered tools. Calls use the new schema, and a notice names the change."""

    @tool(name="multiply", thread=False)
    def changed(x: int) -> int:
        """Square."""
        return x * x

    remote = Remote("far", [add, multiply])
    llm = ScriptedLLM(["one", [ToolCall("multiply", {"x": 3})], "two"])
    async with BareAgent("tutor", llm=llm, tools=[remote]) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await ask(session)
        remote.publish([changed])
        await ask(session)
        assert [r.content for r in results] == ["9"]
        (notices_told,) = notices(session)
        assert notices_told.splitlines() == [
            "Tools that are not there any more: add.",
            "Tools that changed; find_tools describes their parameters now: multiply.",
        ]


async def test_colliding_names_get_a_prefix():
    """A duplicate name gets its toolset's name as a prefix.

    Unusable tools are omitted and long names are cut.
    """
    odd = [tool(name=f"{'x' * 60}", thread=False)(lambda a: a) for _ in range(1)]
    far = [type(add)(f"n{n}", "", add.func, thread=False) for n in range(2)]
    far[0].name, far[1].name = "a/b c" * 30, ""
    agent = BareAgent(
        "tutor",
        llm=ScriptedLLM(["x"]),
        tools=[add, StaticToolset("one", [add, *odd, *far]), StaticToolset("two", [add])],
    )
    async with agent:
        names = [spec.name for spec in agent.tools.specs]
    assert names[:3] == ["add", "one_add", "x" * 60]
    assert names[-2:] == ["two_add", "read_result"]
    assert len(names) == len(set(names))
    assert all(0 < len(name) <= 64 for name in names)


@pytest.mark.parametrize("value", [lambda t: StaticToolset("team", [t]).prefixed("my_"), EnvelopedTool])
async def test_an_agent_among_the_tools_is_started(value):
    """A tool of an agent starts this agent, also inside a toolset or a wrapper."""
    helper = BareAgent("helper", llm=ScriptedLLM(["42"]))
    tool = value(helper.as_tool())
    name = "my_helper" if isinstance(tool, Toolset) else "helper"
    llm = ScriptedLLM([[ToolCall(name, {"task": "6 * 7"})], "done"])
    async with BareAgent("lead", llm=llm, tools=[tool]) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await ask(session)
    assert "42" in results[0].content


def test_duplicate_toolset_name_is_rejected():
    """The error has a remedy."""
    with pytest.raises(ConfigurationError, match="two toolsets are named 'x'"):
        BareAgent("tutor", llm=ScriptedLLM([]), tools=[StaticToolset("x", []), StaticToolset("x", [])])


async def test_invalid_tool_configuration_ends_the_start():
    """The start raises, because this is a programming error."""
    with pytest.raises(ConfigurationError, match="names the parameter 'town'"):
        async with BareAgent("t", llm=ScriptedLLM([]), tools=[StaticToolset("x", [add]).configured(town=1)]):
            pass


class Misconfigured(Toolset):
    """A toolset that raises a configuration error after `delay` seconds."""

    def __init__(self, name="wrong", *, required=False, delay=0.0):
        self.name = name
        self.required = required
        self.delay = delay
        self.runs = 0

    async def run(self, publish):
        self.runs += 1
        await trio.sleep(self.delay)
        raise ConfigurationError("the program 'lathe' was not found: install it")


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_misconfigured_toolset_ends_the_start(required, others, caplog, autojump_clock):
    """The start raises the error, whether the toolset is required or not, and nothing is retried."""
    wrong = Misconfigured(required=required)
    toolsets = [*(Remote(f"good {number}", [add]) for number in range(others)), wrong]
    with pytest.raises(ConfigurationError, match="'lathe' was not found: install it"):
        async with BareAgent("t", llm=ScriptedLLM([]), tools=toolsets):
            pass
    assert wrong.runs == 1
    assert "tried again" not in caplog.text


async def test_misconfigured_shared_toolset_ends_both_starts(autojump_clock):
    """Both starts raise the error, concurrent or in sequence, and the runtime continues."""
    wrong, errors = Misconfigured(delay=1), []

    async def start(name):
        try:
            await runtime.start(BareAgent(name, llm=ScriptedLLM([]), tools=[wrong]))
        except ConfigurationError as error:
            errors.append(str(error))

    async with open_runtime() as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, "one")
            nursery.start_soon(start, "two")
        await start("three")
        async with open_toolset(StaticToolset("s", [add])) as tools:
            assert [each.name for each in tools()] == ["add"]
    assert len(errors) == 3


async def test_misconfiguration_after_the_start_is_logged_once(caplog, autojump_clock):
    """The agent serves without the toolset. A second agent with this toolset does not start."""
    wrong = Misconfigured(delay=5)
    async with open_runtime() as runtime:
        good = Remote("good", [add])
        await runtime.start(BareAgent("one", llm=ScriptedLLM([]), tools=[good, wrong]))
        await trio.sleep(100)
        with pytest.raises(ConfigurationError, match="lathe"):
            await runtime.start(BareAgent("two", llm=ScriptedLLM([]), tools=[wrong]))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "the configuration of toolset wrong is wrong: the program 'lathe' was not found" in caplog.text
        assert wrong.runs == 1


async def test_misconfiguration_after_a_connection_is_retried(caplog, autojump_clock):
    """A program may be replaced while its server runs, so a running agent retries."""
    source = Remote("x", [add])
    source.error = ConfigurationError("the program was not found")
    async with BareAgent("t", llm=ScriptedLLM([]), tools=[source]):
        source.end.set()
        await trio.sleep(10)
    assert source.log.count("open") > 2
    assert "next attempt in 1 s" in caplog.text


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ConfigurationError("wrong"), ConfigurationError), (OSError("refused"), ToolsetUnavailable)],
)
async def test_failing_toolset_without_an_agent_raises_at_once(error, raised):
    """The error is raised at once and without an exception group."""

    class Failing(Toolset):
        name = "x"

        async def run(self, publish):
            raise error

    with pytest.raises(raised):
        async with open_toolset(Failing()):
            pass


def many(count):
    def one(number):
        @tool(name=f"make_report_{number}", thread=False, approval=number == 7)
        def report(title: str, year: int = 2000) -> str:
            """Write one of many reports."""
            return f"{number} {title} {year}"

        return report

    return [*map(one, range(count)), add, multiply]


async def test_deferred_tools_are_found_and_called():
    """Three tools replace five hundred: the request grows by less than 2 KB. A found tool can be called."""
    sizes = {}
    for tools in ([], [Deferred(StaticToolset("all", many(500)), keep=["add"])]):
        script = [[ToolCall("find_tools", {"query": "multiplying numbers"})], "found"]
        async with open_provider(script if tools else ["found"], keep=10) as provider:
            llm = OpenAI("m", base_url=provider.openai_url, api_key="k")
            async with BareAgent("tutor", llm=llm, tools=tools) as agent:
                session = await agent.create_session("ada")
                results = []
                session.on_tool_result(results.append)
                await ask(session)
            await llm.aclose()
            sizes[bool(tools)] = len(provider.requests[0].body)
    assert 0 < sizes[True] - sizes[False] <= 2048
    found = orjson.loads(results[0].content)["tools"]
    assert found[0]["name"] == "multiply"
    assert found[0]["parameters"] == multiply.parameters


async def test_call_by_call_tool_is_a_call_of_the_tool():
    """Approvals, modes and errors are those of the tool.

    The error for an unknown name lists the known names.
    """

    def call(tool_name, **arguments):
        return [ToolCall("call_tool", {"name": tool_name, "arguments": arguments})]

    llm = ScriptedLLM(
        [
            call("make_report_7", title="A"),
            "approved",
            call("make_report_8", wrong=1),
            "bad",
            call("nothing"),
            "missing",
            call("call_tool", name="add"),
            "nested",
            call("make_report_9", title="B"),
            "refused",
        ]
    )
    modes = Modes(
        Mode("work", lambda *_: True),
        Mode("rest", tools=lambda _, each, __: each.name != "make_report_9"),
        initial="work",
    )
    deferred = Deferred(StaticToolset("all", many(10)))
    async with BareAgent("tutor", llm=llm, tools=[deferred], modes=modes) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        approvals = []

        @session.on_approval
        async def decide(approval):
            approvals.append((approval.tool_name, dict(approval.arguments)))
            await session.answer(approval.id, Approve())

        assert await ask(session) == "approved"
        assert approvals == [("make_report_7", {"title": "A"})]
        assert results[-1].content == "7 A 2000"
        await ask(session)
        assert 'Invalid arguments for tool "make_report_8"' in results[-1].error
        await ask(session)
        assert "tool 'nothing' not found" in results[-1].error
        await ask(session)
        assert "not found" in results[-1].error
        await session.set_mode("rest", by="admin")
        await ask(session)
        assert results[-1].tool_name == "make_report_9"
        assert results[-1].error


async def test_toolsets_survive_a_restart(tmp_path):
    """A call with a pending approval at the process end runs after the restart, also by `call_tool`."""
    url = f"sqlite:///{tmp_path}/agents.db"
    deferred = Deferred(StaticToolset("all", many(10)))
    first = ScriptedLLM([[ToolCall("call_tool", {"name": "make_report_7", "arguments": {"title": "A"}})]])
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=first, tools=[deferred], grace=0.1))
        session = await agent.create_session("ada", "go", session_id="s")
        with trio.fail_after(60):
            await session.wait_idle()
            assert await agent.approvals()
    second = ScriptedLLM(["done"])
    results = []
    async with open_runtime(journal=url) as runtime:
        agent = BareAgent("tutor", llm=second, tools=[deferred])
        agent.on_session(lambda session: session.on_tool_result(results.append))
        await runtime.start(agent)
        (approval,) = await agent.approvals()
        assert approval.tool_name == "make_report_7"
        session = await agent.open_session("s")
        await session.answer(approval.id, Approve())
        await session.wait_idle()
    assert [(r.tool_name, r.content) for r in results] == [("make_report_7", "7 A 2000")]


@pytest.mark.parametrize("by_gateway", [False, True])
async def test_an_approved_call_waits_for_its_toolset_after_a_restart(by_gateway, autojump_clock, tmp_path):
    """A call that is approved while its toolset connects runs after the toolset has connected."""
    paid = []

    @tool(thread=False, effect="once", approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    call = (
        ToolCall("call_tool", {"name": "pay", "arguments": {"amount": 5}})
        if by_gateway
        else ToolCall("pay", {"amount": 5})
    )
    journal = f"sqlite:///{tmp_path}/j.db"
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM([[call], "ok"]), tools=[Remote("bank", [pay])])
        )
        session = await agent.create_session("ada", session_id="s")
        await session.chat("go")
        await session.wait_idle()
        (approval,) = session.approvals
    async with open_runtime(journal=journal) as runtime:
        tools = [Remote("fast", [add]), Remote("bank", [pay], 5)]
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["done"]), tools=tools))
        assert trio.current_time() < 4
        session = await agent.open_session("s")
        await session.answer(approval.id, Approve())
        await session.wait_idle()
        result = next(result for message in session.history for result in message.tool_results)
    assert paid == [5]
    assert (result.content, result.error) == ("paid", None)


async def test_call_waits_for_its_toolset_until_a_timeout(autojump_clock):
    """The error names a toolset that never connects. Later calls do not wait again."""
    llm = ScriptedLLM([[ToolCall("pay", {})], "ok", [ToolCall("pay", {})], "ok"])
    async with BareAgent(
        "a", llm=llm, tools=[Remote("fast", [multiply]), Remote("bank", [add], 1000)]
    ) as agent:
        session = await agent.create_session("ada")
        started = trio.current_time()
        await ask(session)
        assert 9 < trio.current_time() - started < 11
        (result,) = session.history[-2].tool_results
        assert "'pay' not found" in result.error
        assert "tools of bank are not available" in result.error
        started = trio.current_time()
        await ask(session)
        assert trio.current_time() - started < 1


async def test_a_call_that_waits_for_its_toolset_can_be_interrupted(autojump_clock):
    """The call gets the status "cancelled", and the session continues."""
    llm = ScriptedLLM([[ToolCall("pay", {})], "ok"])
    async with BareAgent(
        "a", llm=llm, tools=[Remote("fast", [multiply]), Remote("bank", [add], 1000)]
    ) as agent:
        session = await agent.create_session("ada")
        started = trio.current_time()
        await session.chat("go")
        await trio.sleep(1)
        await session.interrupt()
        await session.wait_idle()
        assert trio.current_time() - started < 3
        results = [result for message in session.history for result in message.tool_results]
    assert [result.status for result in results] == ["cancelled"]
