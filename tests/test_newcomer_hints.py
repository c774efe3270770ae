"""Names of other libraries, and wrong uses of blocks: the error names the correct form."""

import asyncio
import pathlib
import traceback

import attrs
import pytest
import trio

from actgent import (
    ActgentError,
    Agent,
    Approve,
    BareAgent,
    ConfigurationError,
    GoalAgent,
    Image,
    Limits,
    Mode,
    Modes,
    NotRunning,
    OpenAI,
    PlanAgent,
    Quotas,
    Reject,
    Reply,
    ScriptedLLM,
    SessionNotFound,
    Suspended,
    ToolCall,
    ToolContext,
    Usage,
    UsageError,
    WrongOwner,
    open_gateway,
    open_portal,
    open_runtime,
    tool,
)
from actgent.protocols.goal.goal_decision_parsing import CustomAction


@pytest.fixture
def told(caplog):
    """Return the log records as text."""
    return lambda: [
        f"{record.getMessage()}\n{record.exc_text or ''}"
        for record in caplog.records
        if record.name.startswith("actgent")
    ]


def clerk(*texts, **options) -> BareAgent:
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


# --- blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [open_runtime, open_gateway, Agent.stream, clerk().stream, clerk().follow])
async def test_uncalled_async_block_function_raises_a_hint(make):
    """`async with open_runtime as runtime` raises an error that says to call the function. So do `with`, `await` and `async for`."""
    lead = rf"is a function that makes a block: call it, as in `async with {make.__qualname__}\(\.\.\.\) as"
    with pytest.raises(TypeError, match=lead):
        async with make:
            pass
    with pytest.raises(TypeError, match=lead), make:
        pass
    with pytest.raises(TypeError, match=lead):
        await make
    with pytest.raises(TypeError, match=lead):
        async for _ in make:
            pass


def test_uncalled_portal_function_raises_a_hint():
    """The error for `open_portal` shows `with` in synchronous code and `async with` in asyncio."""
    with pytest.raises(TypeError, match=r"`with open_portal\(\.\.\.\) as"), open_portal:
        pass
    with pytest.raises(TypeError, match=r"`async with open_portal\(\.\.\.\) as"):
        trio.run(open_portal.__aenter__)


async def test_awaited_block_raises_a_hint():
    """The error says to enter the block by `async with`."""
    async with clerk() as agent:
        for make in (open_runtime, lambda: agent.stream("hi")):
            with pytest.raises(TypeError, match=r"is an async block: write `async with"):
                await make()


async def test_stream_read_without_async_raises_a_hint():
    """The error of each kind of reader says to read by `async for`."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada")
        for block in (agent.stream("hi"), session.follow(), session.observe()):
            async with block as events:
                with pytest.raises(TypeError, match="read by `async for`"):
                    for _ in events:
                        pass


def test_portal_stream_in_the_wrong_context_raises_a_hint():
    """Cases: a stream that is not entered, and a synchronous stream in `async with`."""
    with open_portal() as portal:
        agent = portal.start(clerk())
        with pytest.raises(
            TypeError, match=r"the stream must be entered before it is read: `with agent.stream"
        ):
            next(agent.stream("hi"))

        async def wrong():
            async with agent.stream("hi"):
                pass

        with pytest.raises(TypeError, match=r"synchronous code: write `with agent.stream"):
            portal.call(wrong)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"db": "x.db"}, "open_runtime() has no argument 'db': write journal='sqlite:///agents.db'"),
        ({"agents": []}, "await runtime.start(agent)"),
        ({"jurnal": "memory:"}, "did you mean journal=?"),
    ],
)
def test_unknown_runtime_argument_raises_a_hint(options, expected):
    """The call itself raises the error, which names the correct argument."""
    with pytest.raises(TypeError) as caught:
        open_runtime(**options)
    assert expected in str(caught.value)


def test_positional_agents_of_a_runtime_raise_a_hint():
    """A runtime has no positional arguments, and the error names `runtime.start(agent)`."""
    for make in (open_runtime, open_portal):
        with pytest.raises(TypeError, match=r"Start agents inside the block: await runtime\.start\(agent\)"):
            make(clerk())


async def test_unknown_stream_argument_raises_a_hint():
    """The error for an unknown keyword names the correct one. Other errors do not change."""
    async with clerk() as agent:
        with pytest.raises(TypeError, match=r"no argument 'owner': write session="):
            agent.stream("hi", owner="ada")
        with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'content'"):
            agent.stream()


async def test_block_function_keeps_name_and_docstring():
    """The wrapper has the name, docstring and result of the function."""
    assert open_runtime.__name__ == "open_runtime"
    assert "Open a block" in open_runtime.__doc__
    async with clerk() as agent, agent.stream("hi") as events:
        assert [type(event).__name__ async for event in events] == ["Token", "Reply"]


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("run", "agent = await runtime.start(BareAgent(...)), then await agent.run(text)"),
        ("create_session", "await agent.create_session(owner)"),
        ("add", "await runtime.start(agent)"),
        ("close", "a runtime ends with its block"),
    ],
)
async def test_unknown_runtime_method_raises_a_hint(name, expected):
    """The error says to start an agent and to use the methods of the agent."""
    async with open_runtime() as runtime:
        with pytest.raises(AttributeError) as caught:
            getattr(runtime, name)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("item", "name", "expected"),
    [
        (Usage(), "total_tokens", "usage.input_tokens and usage.output_tokens"),
        (Usage(), "prompt_tokens", "read usage.input_tokens"),
        (Usage(), "completion_tokens", "read usage.output_tokens"),
        (ToolCall("f", {}), "args", "read call.arguments"),
        (clerk(), "history", "session.history"),
        (clerk(), "usage", "session.usage"),
        (clerk(), "sessions", "runtime.sessions(agent=agent.name)"),
        (clerk(), "llm", "given when the agent is made"),
        (clerk(), "instructions", "agent.system_prompt"),
    ],
)
def test_names_of_other_libraries_raise_a_hint(item, name, expected):
    """The error names the public name of this package, and `hasattr` is false."""
    with pytest.raises(AttributeError) as caught:
        getattr(item, name)
    assert expected in str(caught.value)
    assert not hasattr(item, name)
    assert name not in dir(item)


def test_subclass_attributes_precede_hints():
    """A subclass may define attributes with the names that raise these errors in the base class."""

    class Own(BareAgent):
        sessions = ("one",)

        def __init__(self):
            super().__init__("own", llm=ScriptedLLM([]))
            self.history = ["mine"]

    assert (Own().sessions, Own().history) == (("one",), ["mine"])


def test_hints_of_portals_suggest_synchronous_calls():
    """The suggested calls have no `await` in synchronous code."""
    with open_portal() as portal:
        agent = portal.start(clerk())
        with pytest.raises(
            AttributeError, match=r"session = agent\.create_session\(owner\), then session\.chat"
        ):
            agent.chat  # noqa: B018 - the access is the test
        session = agent.create_session("ada")
        with pytest.raises(AttributeError, match=r"write session\.chat\(text\)"):
            session.send  # noqa: B018 - the access is the test
        with pytest.raises(AttributeError) as caught:
            session.run  # noqa: B018
        assert "write agent.run(text, session=session)" in str(caught.value)
        assert "await" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"daily": Limits(tokens=3)}, "write day=Limits(...)"),
        ({"cost": 1}, "write day=Limits(...) or month=Limits(...)"),
        ({"timezone": "UTC"}, "write zone='Europe/Oslo'"),
    ],
)
def test_misnamed_quota_arguments_raise_a_hint(options, expected):
    """The error names the correct argument."""
    with pytest.raises(TypeError) as caught:
        Quotas(**options)
    assert expected in str(caught.value)


def test_misnamed_options_of_tools_and_clients_raise_a_hint():
    """The error names the nearest option, or the option with this name in other libraries."""
    with pytest.raises(TypeError, match=r"no argument 'desc': write description="):

        @tool(desc="adds")
        def add(a: int) -> int:
            return a

    with pytest.raises(
        ConfigurationError,
        match=r"OpenAI has no option 'key': did you mean 'api_key'\? The options are: api_key",
    ):
        OpenAI("gpt-5.2", key="k")
    with pytest.raises(TypeError, match=r"BareAgent\(\) needs name=: write it first"):
        BareAgent(llm=ScriptedLLM([]))


def test_unknown_provider_lists_the_known_ones():
    """The error lists the known providers once."""
    with pytest.raises(ConfigurationError) as caught:
        BareAgent("clerk", llm="cohere:command-r")
    assert str(caught.value).count("mistral") == 1


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/gpt-5", "did you mean 'openai:gpt-5'?"),
        ("OpenAI:gpt-5", "did you mean 'openai:gpt-5'?"),
        ("claude:sonnet", "did you mean 'anthropic:sonnet'?"),
        ("google:gemini-3", "did you mean 'gemini:gemini-3'?"),
        ("gpt-5", "did you mean 'openai:gpt-5'?"),
        ("http://localhost:11434/v1", "OpenAI(MODEL, base_url='http://localhost:11434/v1')"),
        ("opneai:gpt-5", "did you mean 'openai'?"),
    ],
)
def test_model_name_of_another_library_raises_a_hint(model, expected):
    """The error has the likely text of the model."""
    with pytest.raises(ConfigurationError) as caught:
        BareAgent("clerk", llm=model)
    assert expected in str(caught.value)


# --- states ----------------------------------------------------------------------------------


async def test_setting_state_attributes_raises_a_hint():
    """`state.x = 1` and `session.state = ...` raise an error that names the call which changes the state."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(
            AttributeError, match=r"'x' cannot be set: .*state\.dispatch\(\[\(key, value\)\]\)"
        ) as caught:
            session.state.x = 1
        assert "Did you mean" not in "".join(traceback.format_exception_only(caught.value))
        with pytest.raises(AttributeError, match=r"state\.dispatch"):
            session.state = {"x": 1}
        assert dict(session.state) == {}
        session.state.dispatch(("x", 1))
        assert session.state["x"] == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(({"x": 1},), "write list(changes.items())"), (("x", 1), "dispatch(('x', value))")],
)
async def test_invalid_state_action_is_rejected(value, expected):
    """Cases: a mapping, and a tuple that is no pair."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(UsageError) as caught:
            session.state.dispatch(*value)
    assert expected in str(caught.value)


async def test_async_state_action_is_rejected_with_a_hint():
    """An async action is rejected, and Python warns of no coroutine that was never awaited."""

    async def act(state):
        return ("x", 1)

    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(UsageError, match="a plain function, which does not await"):
            session.state.dispatch(act)


# --- values ----------------------------------------------------------------------------------


async def test_journal_path_raises_a_hint():
    """The error has the complete journal URL for this path."""
    path = pathlib.Path("/var/agents.db")
    with pytest.raises(ConfigurationError, match=r"write 'sqlite:////var/agents\.db'"):
        async with open_runtime(journal=path):
            pass
    with pytest.raises(ConfigurationError, match=r"a string such as 'sqlite:///agents\.db', not 7"):
        async with open_runtime(journal=7):
            pass


@pytest.mark.parametrize(
    ("url", "shown", "meant"),
    [
        ("mysql://root:secret@host/db", "mysql://host/db", ""),
        ("redis://localhost", "redis://localhost", ""),
        ("sqlite:///:memory:", "sqlite:///:memory:", "memory:"),
        (":memory:", ":memory:", "memory:"),
        ("memory", "memory", "memory:"),
        ("agents.db", "agents.db", "sqlite:///agents.db"),
        ("/var/agents.db", "/var/agents.db", "sqlite:////var/agents.db"),
        ("sqlite:agents.db", "sqlite:agents.db", "sqlite:///agents.db"),
        ("sqlite://agents.db", "sqlite://agents.db", "sqlite:///agents.db"),
        ("sqlite:/var/agents.db", "sqlite:/var/agents.db", "sqlite:////var/agents.db"),
        ("SQLite:///agents.db", "SQLite:///agents.db", "sqlite:///agents.db"),
        ("sqlite+aiosqlite:///a.db", "sqlite+aiosqlite:///a.db", "sqlite:///a.db"),
        ("file:agents.db", "file:agents.db", "sqlite:///agents.db"),
        ("postgresql+psycopg://u:secret@h/d", "postgresql+psycopg://h/d", "postgresql://h/d"),
        ("sqlite:///", "sqlite:///", ""),
        ("", "", ""),
    ],
)
async def test_journal_url_of_another_library_raises_a_hint(url, shown, meant):
    """The error shows the scheme of the address without the login. It shows the correct address if that is clear."""
    with pytest.raises(ConfigurationError) as caught:
        async with open_runtime(journal=url):
            pass
    text = str(caught.value)
    assert text.startswith(
        f"{shown!r} is not a journal URL; use 'sqlite:///FILE', 'postgres://HOST/DATABASE'"
    )
    assert text.endswith(f"did you mean {meant!r}?") is bool(meant)
    assert "secret" not in text


async def test_a_journal_that_cannot_be_opened_has_a_short_traceback(tmp_path):
    """The traceback leaves out frames of the storage, because they do not explain a wrong address."""
    with pytest.raises(ActgentError) as caught:
        async with open_runtime(journal=f"sqlite:///{tmp_path}/none/agents.db"):
            pass
    lines = traceback.format_exception(caught.value)
    assert len([line for line in lines if "/actgent/" in line]) <= 4
    assert f"the folder '{tmp_path}/none' does not exist" in str(caught.value)


@pytest.mark.parametrize(
    ("decision", "expected"), [(True, "write Approve() or Reject(reason)"), (Reject, "write Reject()")]
)
async def test_invalid_decision_object_is_rejected(decision, expected):
    """Cases: a class and a bool. The call keeps waiting."""

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    async with clerk(ToolCall("pay", {}), "done", tools=[pay]) as agent:
        with pytest.raises(Suspended) as waiting:
            await agent.run("hi")
        with pytest.raises(ConfigurationError) as caught:
            await agent.resume({waiting.value.ids[0]: decision})
        assert expected in str(caught.value)
        assert (await agent.resume({waiting.value.ids[0]: Approve()})).text == "done"


async def test_missing_sessions_and_agents_raise_a_hint():
    """The error names the calls that create or list sessions, or the nearest agent. The error for a session of another owner names no owner but the caller's."""
    async with open_runtime() as runtime:
        agent = await runtime.start(clerk())
        await runtime.start(BareAgent("writer", llm=ScriptedLLM([])))
        session = await agent.create_session("ada", session_id="s")
        with pytest.raises(
            SessionNotFound, match=r"ensure_session\(owner, session_id\) creates it"
        ) as missing:
            await agent.open_session("t")
        with pytest.raises(WrongOwner, match=r"use another session_id; runtime\.sessions\(owner=\.\.\.\)"):
            await agent.open_session("s", owner="eve")
        assert "runtime.sessions()" in str(missing.value)
        with pytest.raises(NotRunning, match=r"'wirter' is not running: did you mean 'writer'\?"):
            await session.delegate("wirter", "Write.")


async def test_tool_that_exits_the_program_is_logged(told):
    """SystemExit in a tool is logged as any failure of a tool, with the function. The agent continues."""

    @tool
    async def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    async with clerk(ToolCall("leave", {}), "done", tools=[leave]) as agent:
        assert (await agent.run("hi")).text == "done"
    (record,) = told()
    assert "tool leave failed; the model reads the error" in record
    assert "SystemExit" in record
    assert "in leave" in record


def test_context_parameter_without_annotation_is_logged(told):
    """Without an annotation, the model fills the parameter, so a log record names the annotation."""

    @tool
    def look(ctx) -> str:
        """Look."""
        return str(ctx)

    (record,) = told()
    assert "annotate it, e.g. `ctx: ToolContext`" in record

    @tool
    def see(ctx: ToolContext) -> str:
        """See."""
        return ctx.agent

    assert len(told()) == 1


def test_repeated_and_missing_names_are_reported():
    """The error contains the repeated or missing name."""
    with pytest.raises(ConfigurationError, match="two modes are named 'a'"):
        Modes(Mode("a", tools=[]), Mode("a", tools=[]))
    with pytest.raises(ConfigurationError, match="two custom actions are named 'a'"):
        GoalAgent(
            "g",
            llm=ScriptedLLM([]),
            actions=[CustomAction("a", "Act.", run=print), CustomAction("a", "Act.", run=print)],
        )
    with pytest.raises(ConfigurationError, match=r"e\.g\. 'clerk', not ''"):
        BareAgent("", llm=ScriptedLLM([]))


async def test_unknown_tools_and_stages_of_a_plan_agent_have_suggestions():
    """The error suggests the existing names."""

    @tool
    def search(word: str) -> str:
        """Search."""
        return word

    async with PlanAgent("p", llm=ScriptedLLM([]), tools=[search]) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=r"no tool 'serch': did you mean 'search'\?"):
            agent.configure(session, tools=["serch"])
        with pytest.raises(ConfigurationError, match=r"unknown stage 'plann': did you mean 'planning'\?"):
            agent.configure(session, models={"plann": "default"})


@attrs.frozen
class Unused:
    """Attrs class of the program. Its errors for unknown arguments are those of Python."""

    size: int


def test_classes_of_a_program_keep_their_error_texts():
    """Only errors of classes of this package have another text."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'length'"):
        Unused(length=3)


@pytest.mark.parametrize(
    ("method", "word", "advice"),
    [
        ("run", "stream", "write async with agent.stream(text)"),
        ("run", "message_history", "create_session(owner, history=[...])"),
        ("run", "thread_id", "await agent.ensure_session(owner, session_id)"),
        ("run", "max_turns", "write limits=Limits(model_calls=...)"),
        ("run", "usage_limits", "write limits=Limits(tokens=..., cost=..., model_calls=...)"),
        ("run", "user_prompt", "the message is the first argument"),
        ("run", "output_type", "write output="),
        ("run", "temprature", "did you mean temperature=?"),
        ("stream", "stream", "leave stream= out"),
        ("stream", "conversation_id", "await agent.ensure_session(owner, session_id)"),
        ("create_session", "thread_id", "write session_id="),
        ("create_session", "messages", "write history=[...]"),
        ("create_session", "system_prompt", "write prompt=PromptLayer(system=...)"),
        ("ensure_session", "user_id", "the owner is the first argument"),
    ],
)
async def test_argument_of_another_framework_raises_a_hint(method, word, advice):
    """The error names the argument and the replacement."""
    async with clerk() as agent:
        first = ("ada", "s1") if method.endswith("session") else ("hi",)
        with pytest.raises(TypeError) as caught:  # noqa: PT012 - a stream raises when it is called
            called = getattr(agent, method)(*first, **{word: "x"})
            if method != "stream":
                await called
    assert str(caught.value).startswith(f"Agent.{method}() has no argument {word!r}: ")
    assert advice in str(caught.value)


async def test_an_argument_without_a_close_name_gets_the_list_of_arguments():
    """A wrong suggestion is worse than no suggestion: `stream=` is not `threads=`."""
    async with clerk() as agent:
        with pytest.raises(
            TypeError,
            match=r"^Agent.run\(\) has no argument 'grammar': its arguments are content=, session=, ",
        ):
            await agent.run("hi", grammar="x")
    with pytest.raises(TypeError) as caught:
        tool(stream=True)(len)
    assert "threads" not in str(caught.value)


async def test_misused_chat_result_raises_a_hint():
    """chat() returns the id of the message, and the error for `.text` says where the reply is."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(
            TypeError, match=r"^Session.chat\(\) has no argument 'stream': write session.on_token"
        ):
            await session.chat("hi", stream=True)
        message_id = await session.chat("hi")
        assert type(str(message_id)) is str
        with pytest.raises(AttributeError, match=r"write reply = await agent.run\(text, session=session\)"):
            message_id.text  # noqa: B018 - a mistake
        await session.wait_idle()


async def test_message_id_can_be_stored_as_text(tmp_path):
    """The id can be an id of another message and can be stored in states and metadata. A journal stores it as text."""
    async with open_runtime(journal=f"sqlite:///{tmp_path / 'a.db'}") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        first = await session.chat("hi")
        await session.chat("again", message_id=first)
        assert await session.chat("more", message_id=type(first)("m2"), metadata={first: [first]}) == "m2"
        session.state.dispatch([("last", first)])
        await session.wait_idle()
    async with open_runtime(journal=f"sqlite:///{tmp_path / 'a.db'}") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.open_session("s")
        assert type(session.state["last"]) is str
        messages = [message for message in session.history if message.sender.name == "ada"]
        assert [message.id for message in messages] == [first, "m2"]
        assert messages[1].metadata == {first: [first]}


@pytest.mark.parametrize(
    "name", ["final_output", "messages", "tool_calls", "cost", "total_tokens", "response"]
)
async def test_reply_attributes_of_other_frameworks_raise_a_hint(name):
    """The error for each name has the correct attribute."""
    async with clerk() as agent:
        reply = await agent.run("hi")
    with pytest.raises(AttributeError, match=r": read "):
        getattr(reply, name)


def test_media_constructors_of_other_frameworks_raise_a_hint():
    """The error for constructors of other libraries names data=. The error for dict access to a reply names its attributes."""
    with pytest.raises(AttributeError, match=r"data=pathlib\.Path"):
        Image.from_path("picture.png")
    with pytest.raises(TypeError, match=r"read reply\.text, or reply\.data"):
        Reply(text="x")["text"]


async def test_wrongly_attached_handler_raises_a_hint():
    """Cases: with parentheses, and with swapped parameters."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match=r"write `@session.on_tool_result` without parentheses"):

            @session.on_tool_result()
            def show(result):
                pass

        with pytest.raises(
            ConfigurationError, match=r"show takes \(session, reply\).*def show\(reply, session\)"
        ):

            @session.on_conversation
            def show(session, reply):
                pass


def test_tool_without_a_docstring_is_logged(told):
    """One log record states the description that the model gets."""

    def get_weather(city: str) -> str:
        return city

    assert tool(get_weather).description == "Get weather"
    (line,) = told()
    assert "tool get_weather has no description" in line
    assert "write a docstring" in line


async def test_ring_of_agents_is_logged(told):
    """One warning names the ring, and the limit ends the calls."""
    first = BareAgent("first", llm=ScriptedLLM([ToolCall("second", {"task": "x"})], repeat=True))
    second = BareAgent("second", llm=ScriptedLLM([ToolCall("first", {"task": "x"})], repeat=True))
    first.tools.add(second.as_tool())
    second.tools.add(first.as_tool())
    async with open_runtime() as runtime:
        await runtime.start(first)  # and with it the agent of its tool
        with pytest.raises(ActgentError):
            await first.run("hi")
    rings = [line for line in told() if "in a ring" in line]
    assert "second -> first -> second. Give one of them no tool for the other" in rings[0]
    assert len(rings) <= 2  # the second counts the repetitions


def test_run_sync_in_asyncio_is_logged(told):
    """The call returns the answer, and the log names the correct function."""

    async def main():
        return clerk().run_sync("hi").text

    assert asyncio.run(main())
    assert any("blocks the event loop of asyncio" in line for line in told())
