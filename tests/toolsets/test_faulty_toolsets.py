"""Toolsets that publish what is wrong, where it is wrong or when it is wrong, and agents that stop meanwhile."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import BareAgent, Mode, Modes, ScriptedLLM, StaticToolset, ToolCall, Toolset, open_runtime, tool
from actgent.errors import ConfigurationError, NotRunning, ToolsetUnavailable
from actgent.tools.base import Tool
from actgent.tools.registry import ToolRegistry
from actgent.toolsets.gateway import ranked, registry_of


@tool(thread=False, effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Remote(Toolset):
    """Publishes what a test gives it: at once, by the `publish` that it keeps, or never."""

    def __init__(self, *published, required=False):
        self.name = "remote"
        self.required = required
        self.published = published
        self.publish = None
        self.end = trio.Event()

    async def run(self, publish):
        self.publish = publish
        for tools in self.published:
            publish(tools)
        await self.end.wait()


class Unfinished(Tool):
    """A tool without a schema."""

    name = "unfinished"

    async def execute(self, arguments, context):
        return ""


class Odd(Tool):
    """A tool with one attribute that is something else."""

    def __init__(self, **attributes):
        self.__dict__ |= {"name": "odd", "parameters": {"type": "object"}, **attributes}

    async def execute(self, arguments, context):
        return ""


def agent_with(*tools, name="helper"):
    return BareAgent(name, llm=ScriptedLLM(["hi"]), tools=list(tools))


UNUSABLE = [
    object(),
    None,
    Unfinished(),
    Odd(name=3),
    Odd(timeout="soon"),
    Odd(description="\ud800"),
    Odd(parameters={"type": "object", "properties": {"n": {"maximum": 2**70}}}),
]


@pytest.mark.parametrize("unusable", UNUSABLE, ids=lambda given: type(given).__name__)
async def test_what_is_no_tool_is_left_out_and_the_rest_is_there(unusable, caplog):
    async with open_runtime() as runtime:
        first = await runtime.start(agent_with(remote := Remote([unusable, add])))
        second = await runtime.start(agent_with(remote, name="second"))
        assert "add" in first.tools
        assert "add" in second.tools
        assert [each.name for each in first.tools] == ["find_tools", "call_tool", "add", "read_result"]
    assert "a tool is left out" in caplog.text


@pytest.mark.parametrize("published", [None, 3])
async def test_what_is_no_list_of_tools_is_a_lost_connection(published, autojump_clock):
    async with open_runtime() as runtime:
        agent = await runtime.start(agent_with(Remote(published)))
        assert "remote" in agent.tools.unavailable


async def test_tools_of_a_run_that_is_over_are_not_taken(autojump_clock):
    async with open_runtime() as runtime:
        agent = await runtime.start(agent_with(remote := Remote([add])))
        late = remote.publish
        remote.published = ()
        remote.end.set()
        await wait_all_tasks_blocked()
        assert "remote" in agent.tools.unavailable
        late([add])
        assert "remote" in agent.tools.unavailable


async def test_publishing_from_another_thread_says_how_to(caplog):
    refused = []

    class Threaded(Remote):
        async def run(self, publish):
            try:
                await trio.to_thread.run_sync(publish, [add])
            except RuntimeError as error:
                refused.append(str(error))
            await trio.to_thread.run_sync(trio.from_thread.run_sync, publish, [add])
            await trio.sleep_forever()

    async with open_runtime() as runtime:
        agent = await runtime.start(agent_with(Threaded()))
        assert "add" in agent.tools
    assert "trio.from_thread.run_sync" in refused[0]


@pytest.mark.parametrize(("required", "raised"), [(True, ToolsetUnavailable), (False, NotRunning)])
async def test_an_agent_that_is_stopped_while_it_connects_ends_its_start(required, raised, mock_clock):
    silent = Remote(required=required)
    silent.connect_timeout = 1e9
    async with open_runtime() as runtime, trio.open_nursery() as nursery:

        async def start():
            with pytest.raises(raised):
                await runtime.start(agent_with(silent))

        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        runtime.stop("helper")


@pytest.mark.parametrize(
    "attributes", [{"name": ""}, {"name": None}, {"connect_timeout": None}, {"connect_timeout": -1}]
)
def test_a_toolset_that_cannot_run_is_refused_by_its_agent(attributes):
    remote = Remote([add])
    for name, value in attributes.items():
        setattr(remote, name, value)
    with pytest.raises(ConfigurationError, match=r"name of a toolset|connect_timeout="):
        agent_with(remote)


def test_a_query_of_a_megabyte_looks_for_its_first_words_only():
    known = list(ToolRegistry([add]))
    assert ranked(known, "add " + "word " * 200_000) == [add]
    assert ranked(known, "word " * 200_000 + "add") == []


def test_a_programs_own_call_tool_and_find_tools_are_tools_like_others():
    @tool(thread=False)
    def call_tool(name: str) -> str:
        """Call somebody who mends tools."""
        return name

    _, registry = registry_of([call_tool, StaticToolset("numbers", [add])], mapped=())
    call = ToolCall("call_tool", {"name": "add"})
    assert registry.resolve(call) is call


def test_a_programs_own_find_tools_is_not_in_every_mode():
    @tool(thread=False)
    def find_tools() -> str:
        """Search the garage."""
        return ""

    modes = Modes(Mode("idle", tools=()), ready=False)
    assert not modes.allows("idle", find_tools)
