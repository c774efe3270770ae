"""A misspelt restriction, or one of a wrong type, raises an error. It never removes the restriction."""

import json
import math

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    HTTPTool,
    Limits,
    MCPServer,
    Mode,
    ModeChangeRejected,
    Modes,
    OpenAPI,
    PlanAgent,
    Quotas,
    ScriptedLLM,
    StaticToolset,
    ToolCall,
    delegation_tools,
    mcp_servers,
    open_runtime,
    tool,
)
from actgent.agents.teams.cluster_pool_agent_proxy import PoolAgent
from actgent.toolsets.builtin.folder_file_tools import file_tools
from actgent.toolsets.builtin.python_sandbox_tool import python_tool
from actgent.toolsets.builtin.shell_tool import process_tool
from actgent.toolsets.builtin.sql_query_tool import sql_tool
from actgent.web.access_tokens import AccessToken


@tool
def pay() -> str:
    """Pay."""
    return "paid"


async def refuse(*_):
    """A rule that is async by mistake. The coroutine that a call returns is true."""
    await trio.lowlevel.checkpoint()
    return False


def generate(*_):
    yield False


class Refuses:
    """A rule as an object that is async by mistake."""

    async def __call__(self, *_):
        await trio.lowlevel.checkpoint()
        return False


RULES = {
    "async": refuse,
    "generator": generate,
    "object": Refuses(),
    "class": Refuses,
    "text": "pay",
    "number": 5,
}
FIXED = StaticToolset("shop", [pay])
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "x", "version": "1"},
    "servers": [{"url": "https://x.example"}],
    "paths": {},
}


def clerk(**options):
    return BareAgent("clerk", llm=ScriptedLLM(["Yes."], repeat=True), **{"tools": [pay], **options})


TAKES_RULE = {
    "Agent(approval=)": lambda rule: clerk(approval=rule),
    "@tool(approval=)": lambda rule: tool(approval=rule)(pay.func),
    "Mode(tools=)": lambda rule: Mode("m", rule),
    "Modes(guard=)": lambda rule: Modes(Mode("m"), ready=False, guard=rule),
    "Toolset.filtered()": lambda rule: FIXED.filtered(rule if rule != "pay" else [rule, 5]),
    "Toolset.approved()": FIXED.approved,
    "OpenAPI(keep=)": lambda rule: OpenAPI(DOCUMENT, keep=rule),
    "delegation_tools(allowed=)": delegation_tools,
}


@pytest.mark.parametrize("where", TAKES_RULE)
@pytest.mark.parametrize("rule", RULES)
def test_rule_has_to_be_a_sync_function(where, rule):
    """Each function that accepts a rule rejects an async function, a generator, a class, a text and a number."""
    with pytest.raises((ConfigurationError, TypeError)):
        TAKES_RULE[where](RULES[rule])


SETTERS = {
    "tool parallel": lambda: tool(parallel="no")(pay.func),
    "tool alone": lambda: tool(exclusive="no")(pay.func),
    "tool alone and parallel": lambda: tool(exclusive=True, parallel=True)(pay.func),
    "tool timeout, flag": lambda: tool(timeout=True)(pay.func),
    "tool timeout, text": lambda: tool(timeout="5")(pay.func),
    "tool timeout, not a number": lambda: tool(timeout=math.nan)(pay.func),
    "tool retries": lambda: tool(retries="2")(pay.func),
    "tool effect": lambda: tool(effect="pur")(pay.func),
    "agent parallel_tools": lambda: clerk(parallel_tools="no"),
    "agent inbox": lambda: clerk(inbox_capacity="10"),
    "agent inbox bytes": lambda: clerk(inbox_bytes=None),
    "agent message bytes": lambda: clerk(message_bytes="1 MB"),
    "agent limits": lambda: clerk(limits={"model_calls": 1}),
    "agent modes, list": lambda: clerk(modes=[Mode("m")]),
    "agent modes, tool that is not there": lambda: clerk(modes=Modes(Mode("m", ["payy"]), ready=False)),
    "mode tools, text": lambda: Mode("m", "pay"),
    "mode tools, number in a list": lambda: Mode("m", [5]),
    "mode who": lambda: Mode("m", who=["usr"]),
    "mode who, None": lambda: Mode("m", who=None),
    "modes execution": lambda: Modes(execution="pay"),
    "modes agent_may": lambda: Modes(agent_may=["planing"]),
    "modes transitions": lambda: Modes(transitions={"plan": {"acct": ["user"]}}),
    "quotas of turns": lambda: Quotas(day=Limits(cost=1, max_repeated_calls=1)),
    "quotas seconds": lambda: Quotas(day=Limits(seconds=1)),
    "pool limits": lambda: PoolAgent("a", pool="p", limits=Limits(depth=1)),
    "approved, False": lambda: FIXED.approved(False),
    "approved, names": lambda: FIXED.approved(["pay"]),
    "with_effect": lambda: FIXED.with_effect("pur"),
    "cached": lambda: FIXED.cached(-1),
    "filtered, tools": lambda: FIXED.filtered([pay]),
    "delegation, text": lambda: delegation_tools("worker"),
    "delegation, agents": lambda: delegation_tools([clerk()]),
    "openapi tags": lambda: OpenAPI(DOCUMENT, tags="pets"),
    "openapi operations": lambda: OpenAPI(DOCUMENT, operations="list"),
    "openapi operation that is not there": lambda: OpenAPI(DOCUMENT, operations=["lst"]),
    "openapi max_bytes": lambda: OpenAPI(DOCUMENT, max_bytes=-1),
    "http tool max_bytes": lambda: HTTPTool("x", "https://x.example", max_bytes=-1),
    "http tool allow": lambda: HTTPTool("x", "https://x.example", allow=[5]),
    "mcp trust_hints": lambda: MCPServer(command="x", trust_hints="false"),
    "mcp resources": lambda: MCPServer(command="x", resources="false"),
    "mcp required": lambda: MCPServer(command="x", required="false"),
    "mcp allow": lambda: MCPServer(url="https://x.example", allow="10.0.0.0/8"),
    "mcp timeout": lambda: MCPServer(command="x", timeout="5"),
    "python_tool tools": lambda: python_tool(tools="pay"),
    "python_tool memory": lambda: python_tool(memory=-1),
    "python_tool seconds": lambda: python_tool(seconds="5"),
    "process_tool processes": lambda: process_tool(processes=-1),
    "process_tool memory": lambda: process_tool(memory="1G"),
    "process_tool disk": lambda: process_tool(disk=0),
    "file_tools write": lambda: file_tools(".", write="no"),
    "sql_tool max_rows": lambda: sql_tool("sqlite:///x", max_rows=-1),
    "token scopes": lambda: AccessToken(name="n", owner="o", scopes=["reed"], digest="d"),
    "token scopes, text": lambda: AccessToken(name="n", owner="o", scopes="read", digest="d"),
    "token expires, not a number": lambda: AccessToken(
        name="n", owner="o", scopes=["read"], digest="d", expires=math.nan
    ),
    "token expires, text": lambda: AccessToken(
        name="n", owner="o", scopes=["read"], digest="d", expires="2027"
    ),
}


@pytest.mark.parametrize("setter", SETTERS)
def test_restriction_of_a_wrong_type_is_rejected(setter):
    """Without this check, these values restricted nothing or failed later with an unrelated error."""
    with pytest.raises(ConfigurationError):
        SETTERS[setter]()


@pytest.mark.parametrize("key", ["disabled", "trust_hints", "required"])
def test_text_flags_of_a_servers_file_are_rejected(tmp_path, key):
    """The text "false" is true in Python: a server stayed enabled, or its hints were trusted."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"x": {"command": "x", key: "false"}}}))
    with pytest.raises(ConfigurationError, match=f"{key}=? must be [Tt]rue or [Ff]alse"):
        mcp_servers(path)


@pytest.mark.parametrize(
    "wrong", [("othr",), (["pay"],), (pay,), ("pay", "othr"), ("read_result",), (None,)], ids=str
)
@pytest.mark.parametrize("setter", ["disable_tools", "enable_tools"])
async def test_tools_of_a_session_are_named_exactly(setter, wrong):
    """An unknown name or a list restricted nothing, so the tool ran. One wrong name leaves the configuration unchanged."""
    plan = json.dumps({"intent": "i", "plan": "p", "toolCalls": [{"toolName": "pay", "arguments": {}}]})
    async with PlanAgent("clerk", llm=ScriptedLLM([plan, "done"]), tools=[pay]) as agent:
        session = await agent.create_session("ada")
        before = agent.enabled_tools(session)
        if not (setter == "enable_tools" and wrong == ("read_result",)):
            with pytest.raises(ConfigurationError):
                getattr(agent, setter)(session, *wrong)
        assert agent.enabled_tools(session) == before
        agent.disable_tools(session, "pay")
        results = []
        session.on_tool_result(results.append)
        await agent.process("go", session=session)
        assert [result.status for result in results] == ["error"]


@pytest.mark.parametrize("config", [{"tools": "pay"}, {"tools": [pay]}, {"models": ["x"]}, {"history": "3"}])
async def test_the_configuration_of_a_session_is_checked(config):
    """A value that is not a list of names, or not a number, is rejected."""
    async with PlanAgent("clerk", llm=ScriptedLLM([]), tools=[pay]) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError):
            agent.configure(session, **config)


async def test_turn_limits_are_rejected_for_a_session():
    """A session accepts only shared limits. Other limits would restrict nothing."""
    async with clerk() as agent:
        for limits in (Limits(max_repeated_calls=1), Limits(tokens=5, tool_timeout=1), Limits(depth=1)):
            for make in (agent.create_session, agent.ensure_session):
                with pytest.raises(ConfigurationError, match="bounds turns and not a session"):
                    await make("ada", session_id="s", limits=limits)
        await agent.create_session("ada", limits=Limits(tokens=5))


@pytest.mark.parametrize("answer", [False, True, 0, ["no"]])
def test_a_guard_of_modes_returns_a_reason_or_none(answer):
    """A guard that returned False to reject the switch allowed it."""
    modes = Modes(guard=lambda *_: answer, initial="plan")
    with pytest.raises(ConfigurationError, match="return None to allow the switch"):
        modes.rejection_reason({}, "act", by="user")
    assert Modes(guard=lambda *_: "", initial="plan").rejection_reason({}, "act", by="user") == ""


async def test_mode_guard_with_an_empty_reason_rejects():
    """Only None allows a switch."""
    async with clerk(modes=Modes(guard=lambda *_: "", initial="plan")) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ModeChangeRejected):
            await session.set_mode("act")
        assert session.mode == "plan"


async def test_a_rule_that_returns_a_coroutine_allows_nothing():
    """A lambda around an async function is detected at its first call, and the tool does not run."""
    modes = Modes(Mode("m", lambda call, *_: refuse(call)), ready=False)
    ran = []

    @tool
    def act() -> str:
        """Act."""
        ran.append(1)
        return "done"

    llm = ScriptedLLM([ToolCall("act", {}), "done"])
    async with BareAgent("clerk", llm=llm, modes=modes, tools=[act]) as agent:
        session = await agent.create_session("ada", "go")
        await session.wait_idle()
    assert ran == []


async def test_delegation_by_a_rule_that_returns_a_coroutine_reaches_no_agent():
    """A delegation rule that returns a coroutine is detected at its first call, and the task is not delegated."""
    requests = []
    worker = BareAgent("worker", llm=ScriptedLLM(lambda _: requests.append(1) or "ok"))
    call = ToolCall("delegate_to_agent", {"agent": "worker", "task": "t"})
    boss = BareAgent(
        "boss", llm=ScriptedLLM([call, "done"]), tools=[*delegation_tools(lambda card: refuse(card.name))]
    )
    async with open_runtime() as runtime:
        await runtime.start(worker)
        await runtime.start(boss)
        await boss.run("go")
    assert requests == []
