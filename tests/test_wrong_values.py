"""Values of a wrong type that were accepted or failed later: the call rejects each of them and names the correct form."""

import pytest

from actgent import (
    ActorFailed,
    AgentBuilder,
    ApprovalNotFound,
    Approve,
    BareAgent,
    ConfigurationError,
    File,
    GatewayLimits,
    HTTPTool,
    Image,
    MCPServer,
    Mode,
    Modes,
    Pipeline,
    PipelineStep,
    Reply,
    ScriptedLLM,
    SessionNotFound,
    ToolContext,
    Toolset,
    open_gateway,
    open_portal,
    open_runtime,
    tool,
)
from actgent.actors import Actor, Supervision
from actgent.evaluation import Case, evaluate
from actgent.interop import OpenAIProtocol


def clerk(*texts, **options) -> BareAgent:
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"retention": 30}, "retention= must be Retention(...), not 30"),
        ({"quotas": {"day": 3}}, "quotas= must be Quotas(...)"),
        ({"supervision": "one_for_one"}, "supervision= must be Supervision(...), not 'one_for_one'"),
    ],
)
async def test_invalid_runtime_arguments_are_rejected(options, expected):
    """Without the check, the arguments would fail later in a background task."""
    with pytest.raises(ConfigurationError) as caught:
        async with open_runtime(**options):
            pass
    assert expected in str(caught.value)


async def test_gateway_of_an_agent_is_rejected():
    """A gateway serves a runtime, not one agent."""
    async with clerk() as agent:
        with pytest.raises(
            ConfigurationError,
            match=r"must be a Runtime, not <BareAgent 'clerk'>: open it with `async with open_runtime",
        ):
            async with open_gateway(agent):
                pass


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bind": 8300}, "bind= (--bind) must be HOST:PORT, such as 127.0.0.1:8300, not 8300"),
        ({"protocols": "openai"}, "must be a list of protocols, such as [OpenAIProtocol()], not 'openai'"),
        (
            {"protocols": OpenAIProtocol()},
            "must be a list of protocols, such as [OpenAIProtocol()], not OpenAIProtocol(",
        ),
        ({"protocols": [OpenAIProtocol]}, "not the class OpenAIProtocol: write OpenAIProtocol()"),
        (
            {"protocols": ["openai"]},
            "must contain protocols of actgent.interop, such as OpenAIProtocol(), not 'openai'",
        ),
    ],
    ids=["port", "name", "protocol", "class", "list of names"],
)
async def test_gateway_options_of_a_wrong_type_are_rejected(options, expected):
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError) as caught:
            async with open_gateway(runtime, **{"bind": "127.0.0.1:0", **options}):
                pass
    assert expected in str(caught.value)


async def test_a_session_is_not_accepted_in_place_of_its_id():
    """A `Session` object as the id matched no session, so `delete_session` deleted nothing."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada")
        for call in (
            lambda: runtime.delete_session(session),
            lambda: agent.open_session(session),
            lambda: agent.ensure_session("ada", session),
            lambda: agent.open_session(3),
        ):
            with pytest.raises(ConfigurationError, match=r"session_id= must be an? .*string.*, not "):
                await call()
        assert await agent.open_session(session.id) is session


async def test_non_approval_values_are_rejected():
    async with clerk() as agent:
        session = await agent.create_session("ada")
        for value in (None, 3, [object()]):
            with pytest.raises(
                ConfigurationError, match=r"an approval is one of session.approvals, or its id"
            ):
                await session.answer(value, Approve())


async def test_an_agent_class_is_not_spawned_as_an_actor():
    """The runtime called the class for each restart, and each call failed in the background."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match=r"write await runtime.start\(BareAgent\(\.\.\.\)\)"):
            await runtime.spawn(BareAgent)


@pytest.mark.parametrize("answer", [5, ["rain"], True])
async def test_invalid_result_of_a_query_function_is_reported(answer):
    """The result is neither a text nor None. The message is answered without this result."""
    model, failures = ScriptedLLM(["Yes."]), []
    agent = BareAgent("clerk", llm=model)
    agent.on_query(lambda _: answer)
    async with agent:
        session = await agent.create_session("ada")
        session.on_exception(failures.append)
        assert (await agent.run("hi", session=session)).text == "Yes."
    (failure,) = failures
    assert failure.kind == "handler"
    assert f"it returned {answer!r}, but a function of on_query returns None, or a string" in str(
        failure.error
    )
    assert "Context" not in str(model.chats[0].messages)


@pytest.mark.parametrize("attach", ["agent", "portal"])
def test_session_function_with_a_second_parameter_is_rejected(attach):
    """The function is called with the session alone, so the call that attaches it rejects a second parameter."""
    agent = clerk()
    with open_portal() as portal:
        face = portal.start(agent) if attach == "portal" else agent
        with pytest.raises(
            ConfigurationError, match=r"called with the session alone: write def fn\(session\)"
        ):
            face.on_session(lambda _, more: more)
        face.on_session(lambda _, more=1: more)


@pytest.mark.parametrize("output", [{"a": int}, {"type": "object", "properties": dict}])
def test_output_dict_of_python_types_is_rejected(output):
    """The error says to write a class or JSON Schema."""
    with pytest.raises(ConfigurationError, match=r"a Python type in a dict: write a class with these fields"):
        clerk(output=output)


async def test_non_text_prompt_is_rejected():
    """Cases: the prompt of an agent, of a session and of a call."""
    with pytest.raises(
        ConfigurationError, match=r"prompt= must be a string or a PromptLayer\(\.\.\.\), not 5"
    ):
        clerk(prompt=5)
    async with clerk() as agent:
        for call in (lambda: agent.run("hi", prompt=5), lambda: agent.create_session("ada", prompt=5)):
            with pytest.raises(ConfigurationError, match="prompt= must be a string"):
                await call()


def test_text_media_is_rejected():
    """Media are bytes, so the error says to encode the text."""
    for kind in (Image, File):
        with pytest.raises(
            TypeError,
            match=rf"{kind.__name__}\(data=\.\.\.\) takes bytes, not a string: write data=text\.encode",
        ):
            kind(media_type="text/plain", data="hello")
    assert File(media_type="text/plain", data=bytearray(b"hello")).data == b"hello"


async def test_invalid_evaluation_arguments_are_rejected():
    """Cases are a list, and agents are objects."""
    case = Case(input="hi", expected="Yes.")
    with pytest.raises(ConfigurationError, match=r"a list of cases, not a Case: write \[case\]"):
        await evaluate(case, clerk())
    with pytest.raises(ConfigurationError, match=r"not the class BareAgent: write BareAgent\(\.\.\.\)"):
        await evaluate([case], BareAgent)
    assert (await evaluate([case], clerk())).meets(1.0)


async def test_unknown_approval_id_is_rejected():
    """The error names the list of pending approvals."""
    async with clerk() as agent:
        with pytest.raises(ApprovalNotFound) as caught:
            await agent.resume({"abc": Approve()})
    assert "approval 'abc' is not pending; see session.approvals, or await agent.approvals()" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout": -1}, "timeout= must be a number of seconds above 0, not -1"),
        ({"retries": -1}, "retries= must be at least 0, not -1"),
        ({"cache": -1}, "cache= must be a number of results of at least 0, not -1"),
        ({"effect": "read"}, "effect= must be one of pure, idempotent, once, not 'read'"),
    ],
)
def test_error_of_a_tool_option_has_the_rejected_value(options, expected):
    """The error has the rejected value and the accepted values."""
    with pytest.raises(ConfigurationError) as caught:
        tool(**options)(look)
    assert expected in str(caught.value)


def look(day: str) -> str:
    """Look."""
    return day


def test_toolset_class_is_rejected():
    """The error says to create an object of the class."""

    class Weather(Toolset):
        """Tools of one's own."""

    with pytest.raises(ConfigurationError, match=r"is not a tool: write Weather\(\)"):
        clerk(tools=[Weather])


def test_names_of_other_libraries_on_objects_raise_a_hint():
    """The error for a name of another library has the correct name."""
    for item, name, expected in (
        (Reply(text="hi"), "json", "read reply.data"),
        (ToolContext(), "user", "read context.owner"),
        (ToolContext(), "history", "context.session.history"),
        (AgentBuilder("clerk"), "with_llm", "builder.llm('openai:gpt-5.2')"),
        (AgentBuilder("clerk"), "system", "builder.system_prompt(text)"),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(item, name)
        assert expected in str(caught.value)
    with pytest.raises(TypeError, match=r"write MCPServer\(command='npx'"):
        MCPServer("npx -y server")
    with pytest.raises(TypeError, match=r"has no argument 'quotas': a runtime has it: open_runtime\(quotas="):
        clerk(quotas=None)


async def test_message_attributes_of_other_libraries_raise_a_hint():
    """A message of the history has text, parts and a sender."""
    async with clerk() as agent:
        session = await agent.create_session("ada", "hi")
        await session.wait_idle()
        for name, expected in (("content", "message.text"), ("role", "message.sender.kind")):
            with pytest.raises(AttributeError) as caught:
                getattr(session.history[0], name)
            assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (lambda: BareAgent("clerk", llm=ScriptedLLM(["Yes."]), on_busy="interupt"), "interrupt"),
        (lambda: Modes(Mode("build"), initial="bild"), "build"),
        (lambda: Modes(Mode("build"), agent_may=["biuld"]), "build"),
        (lambda: Modes(Mode("build"), transitions={"Build": {"plan": ["user"]}}), "build"),
    ],
)
def test_nearly_known_option_value_has_a_suggestion(value, meant):
    """The error suggests the nearest known name."""
    with pytest.raises(ConfigurationError) as caught:
        value()
    assert str(caught.value).endswith(f"did you mean {meant!r}?")


async def test_nearly_known_durability_and_mode_have_a_suggestion():
    """The error suggests the nearest name. A long unknown mode name is truncated in the error."""
    with pytest.raises(ConfigurationError, match="did you mean 'relaxed'"):
        async with open_runtime(journal="memory:", durability="relaxd"):
            pass
    async with clerk(modes=Modes(Mode("build"))) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="did you mean 'plan'"):
            await session.set_mode("plam")
        with pytest.raises(ConfigurationError) as caught:
            await session.set_mode("x" * 100_000)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda session: session.schedule("look", cron=5), "'5' is an invalid cron expression"),
        (lambda session: session.messages(limit="x"), "limit= must be a whole number of at least 1, not 'x'"),
        (lambda session: session.messages(limit=0), "limit= must be a whole number of at least 1, not 0"),
        (
            lambda session: session.messages(roles=["user"], limit=1.5),
            "limit= must be a whole number of at least 1, not 1.5",
        ),
        (
            lambda session: session.delegate(clerk(), "dig"),
            "agent= must be the name of an agent, as in worker.name, not <",
        ),
        (
            lambda session: session.delegate(5, "dig"),
            "agent= must be the name of an agent, as in worker.name, not 5",
        ),
    ],
)
async def test_invalid_session_arguments_are_rejected(call, expected):
    """Without the check, the arguments would fail later with an unrelated error."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError) as caught:
            await call(session)
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"command": 5}, "command= must be the name of a program, not 5"),
        ({"command": ""}, "command= must be the name of a program, not ''"),
        ({"url": "tools.example.com"}, "url= must be the URL of a server"),
        ({"url": "http://["}, "url= must be the URL of a server"),
        ({"url": 5}, "url= must be the URL of a server"),
        ({"url": "ws://h/mcp"}, "such as https://tools.example.com/mcp, not 'ws://h/mcp'"),
        ({"command": "npx", "args": "-y server"}, "args= must be a list: args=['-y', 'server']"),
        ({"command": "npx", "args": ["-p", 80]}, "args= must be a list of strings, but 80 is not a string"),
        ({"command": "npx", "args": 5}, "args= must be a list of strings, not 5"),
        (
            {"command": "npx", "env": ["A=1"]},
            "env= must be a dict, such as env={'NAME': 'value'}, not a list",
        ),
        ({"command": "npx", "env": {"KEY": 5}}, "the value of 'KEY' is of type int"),
        ({"command": "npx", "cwd": 5}, "cwd= must be the path of a folder, not 5"),
        ({"url": "http://h/mcp", "headers": {"A": None}}, "the value of 'A' is of type NoneType"),
    ],
)
def test_invalid_address_of_a_tool_server_is_rejected(options, expected):
    """Without the check, the arguments failed at the connection with an error about allowed hosts."""
    with pytest.raises(ConfigurationError) as caught:
        MCPServer(name="tools", **options)
    assert expected in str(caught.value)


async def test_decisions_without_ids_are_rejected():
    """A list of decisions does not name the approval of each decision."""
    async with clerk() as agent:
        with pytest.raises(
            ConfigurationError, match=r"decisions= must be a mapping of approval ids to decisions"
        ):
            await agent.resume([Approve()])


async def test_inputs_of_a_pipeline_are_values_by_name():
    """A text is not a mapping, although `dict` accepts some texts."""
    step = PipelineStep("page", agent=clerk(), message="{topic}")
    async with Pipeline("report", steps=[step]) as pipeline:
        with pytest.raises(
            ConfigurationError, match=r"inputs= must be a mapping of values by name, e.g. .*, not 'tea'"
        ):
            await pipeline.process("tea")


async def test_an_object_is_not_spawned_as_an_actor():
    """A restart needs a new object, so `spawn` takes the class."""

    class Till(Actor):
        async def receive(self, payload):
            return payload

    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match=r"write await runtime.spawn\(Till\)"):
            await runtime.spawn(Till())


async def test_an_actor_without_receive_names_its_class(caplog):
    """The first message fails with the method that is missing."""

    class Till(Actor):
        pass

    async with open_runtime(supervision=Supervision(deliveries=1)) as runtime:
        till = await runtime.spawn(Till)
        with pytest.raises(ActorFailed):
            await till.ask(1)
    assert "Till must define the method `async def receive(self, payload)`" in caplog.text


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["THOUGHT"], "'THOUGHT' is not an observation type: did you mean 'THOUGHTS'?"),
        ("THOUGHTS", "write ['THOUGHTS']"),
    ],
)
async def test_unknown_observation_types_are_rejected(types, expected):
    """Without the check, a reader would wait forever for unknown types."""
    async with clerk() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError) as caught:
            async with session.observe(types=types):
                pass
    assert expected in str(caught.value)


async def test_a_dict_is_not_a_case():
    """The checks of a case are attributes, so a dict would fail later."""
    with pytest.raises(ConfigurationError, match=r"cases= must contain only Case\(input=\.\.\.\), not "):
        await evaluate([{"input": "Hello"}], clerk())


def test_path_parameters_of_an_http_tool_are_in_its_url():
    """Without the check, a misspelt parameter and its schema would be dropped."""
    with pytest.raises(
        ConfigurationError, match=r"path= names 'town', but .* has no \{town\} \(its parameters: city\)"
    ):
        HTTPTool("forecast", "https://api.example/{city}", path={"town": {"type": "string"}})


async def test_error_of_an_unknown_session_names_no_agent():
    """The error does not name an agent if the caller named none."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(clerk())
        with pytest.raises(SessionNotFound, match=r"^the runtime has no session 's9'"):
            await runtime.fork("s9", to=3)


@pytest.mark.parametrize("rate", ["20", -1, True, None])
def test_a_rate_is_a_number_of_requests_per_second(rate):
    """The error names the unit, which is not seconds."""
    with pytest.raises(
        ConfigurationError, match=r"rate must be a number of requests per second of at least 0, not"
    ):
        GatewayLimits(rate=rate)
