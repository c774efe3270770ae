"""Tools, prompts and resources of a program over an MCP server, with the client of the MCP SDK in this process."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from actgent import (
    ApprovalRequest,
    ApprovalRequired,
    BareAgent,
    ChatMessage,
    File,
    Image,
    ModelError,
    Policy,
    ScriptedLLM,
    Text,
    ToolCall,
    ToolContext,
    ToolError,
    handoff,
    open_runtime,
    tool,
)
from actgent.errors import ConfigurationError

mcp = pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")
types = pytest.importorskip("mcp_types")

from actgent.interop.mcp import MCPCatalog, make_mcp_server, mcp_caller, mcp_prompt, mcp_resource  # noqa: E402 - a module of an extra

from .conftest import make_agents  # noqa: E402

LEGACY, MODERN = "legacy", "2026-07-28"
MODES = (LEGACY, MODERN)
ACTGENT = str(Path(sys.executable).with_name("actgent"))
NAME_FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}},
    "required": ["name"],
}


@asynccontextmanager
async def connected(catalog, mode=MODERN, *, agents=(), owner="ada", may_decide=None, **options):
    async with open_runtime(journal="memory:") as runtime:
        for agent in agents:
            await runtime.start(agent)
        server = make_mcp_server(runtime, owner_of=lambda _: owner, may_decide=may_decide, catalog=catalog)
        with runtime.showing_approvals(), trio.fail_after(60):
            async with mcp.Client(server, mode=mode, **options) as client:
                yield client


def filling(*contents, action="accept", seen=None):
    """Return a callback that answers forms with the given contents in order, and then repeats the last one."""
    left = list(contents)

    async def elicit(_context, params):
        await trio.lowlevel.checkpoint()
        if seen is not None:
            seen.append(params)
        content = left.pop(0) if len(left) > 1 else left[0] if left else None
        return types.ElicitResult(action=action, content=content)

    return elicit


def text_of(result):
    return "".join(each.text for each in result.content)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# --- tools -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_tools_run_without_an_agent(mode):
    async with connected(MCPCatalog(tools=[add]), mode, agents=make_agents()) as client:
        listed = (await client.list_tools()).tools
        assert [each.name for each in listed] == ["clerk", "gpt-5-clerk", "add"]
        assert listed[-1].description == "Add two numbers."
        assert listed[-1].input_schema["required"] == ["a", "b"]
        assert listed[-1].annotations.read_only_hint
        assert text_of(await client.call_tool("add", {"a": 1, "b": 2})) == "3"


@tool(untrusted=True, effect="pure")
def page(is_missing: bool = False) -> str:
    """Read a page."""
    if is_missing:
        raise ToolError("no page")
    return "x"


@tool(readers="owner", effect="pure")
def diary() -> str:
    """Read the diary."""
    return "x"


UNTRUSTED = {"integrity": "untrusted", "confidentiality": "public"}
PRIVATE = {"integrity": "trusted", "confidentiality": ["ada"]}


@pytest.mark.parametrize(
    ("name", "arguments", "meta"),
    [
        ("add", {"a": 1, "b": 2}, None),
        ("page", {}, UNTRUSTED),
        ("page", {"is_missing": True}, UNTRUSTED),
        ("diary", {}, PRIVATE),
        ("clerk", {"message": "go"}, {"integrity": "untrusted", "confidentiality": ["ada"]}),
    ],
    ids=str,
)
async def test_results_carry_their_labels(name, arguments, meta):
    """Results and errors of tools, and answers of agents, have their sources and readers in `_meta.ifc`."""
    script = [[ToolCall("page", {}), ToolCall("diary", {})], "done"]
    agent = BareAgent("clerk", llm=ScriptedLLM(script), tools=[page, diary])
    async with connected(MCPCatalog(tools=[add, page, diary]), agents=[agent]) as client:
        result = await client.call_tool(name, arguments)
    assert (result.meta or {}).get("ifc") == meta
    assert result.is_error == ("is_missing" in arguments)


@pytest.mark.parametrize("by", ["agent", "function"])
@pytest.mark.parametrize(
    ("label", "meta"),
    [
        (None, None),
        ({"integrity": "trusted", "confidentiality": "public"}, None),
        (UNTRUSTED, UNTRUSTED),
        ({"integrity": "trusted", "confidentiality": ["private"]}, PRIVATE),
        ("trusted", UNTRUSTED),
    ],
    ids=str,
)
async def test_the_label_of_a_call_applies_to_the_agent_that_answers(label, meta, by):
    """A client marks a call with `_meta.ifc`. The label of the agent's session includes it, also if a function asks the agent."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["done"]))
    catalog = MCPCatalog(tools=[clerk.as_tool(name="ask_clerk")])
    name, arguments = ("clerk", {"message": "go"}) if by == "agent" else ("ask_clerk", {"task": "go"})
    async with connected(catalog, agents=[clerk]) as client:
        result = await client.call_tool(name, arguments, meta=None if label is None else {"ifc": label})
    assert text_of(result) == "done"
    assert (result.meta or {}).get("ifc") == meta


def _fail(chat):
    if chat.messages[-1].role == "tool":
        raise ModelError("x", model="m")
    return ToolCall("page", {})


@pytest.mark.parametrize("case", ["withheld", "handoff", "error"])
async def test_answers_that_differ_from_the_last_answer_of_the_model_carry_their_labels(case):
    """The label applies to withheld values in the answer, to the answer of another agent, and to the error of a turn."""
    other = BareAgent("other", llm=ScriptedLLM([ToolCall("page", {}), "It was read."]), tools=[page])
    scripts = {
        "withheld": [ToolCall("page", {}), "It says: @r1"],
        "handoff": [ToolCall("handoff_to_other", {})],
        "error": _fail,
    }
    policy = Policy(untrusted="isolate") if case == "withheld" else None
    tools = [page, handoff(other)]
    clerk = BareAgent("clerk", llm=ScriptedLLM(scripts[case]), tools=tools, policy=policy)
    async with connected(MCPCatalog(tools=[]), agents=[other, clerk]) as client:
        result = await client.call_tool("clerk", {"message": "go"})
    assert (result.meta or {}).get("ifc") == UNTRUSTED
    texts = {"withheld": "It says: x", "handoff": "It was read."}
    assert (case == "error") == result.is_error
    assert text_of(result) == texts.get(case, text_of(result))


@pytest.mark.parametrize("by", ["as_tool", "run"])
async def test_results_of_tools_that_ask_agents_carry_the_labels_of_the_answers(by):
    """The label applies though neither the agent `reader` nor the agent `desk` repeats a word of the page and the diary."""
    script = [[ToolCall("page", {}), ToolCall("diary", {})], "done"]
    reader = BareAgent("reader", llm=ScriptedLLM(script), tools=[page, diary])

    @tool
    async def consult() -> int:
        """Consult the reader."""
        session = await reader.create_session("ada")
        return len((await reader.run("read", session=session)).text)

    desk = BareAgent("desk", llm=ScriptedLLM([ToolCall("consult", {}), "four"]), tools=[consult])
    offered, arguments = (
        (desk.as_tool(name="ask_desk"), {"task": "read"}) if by == "as_tool" else (consult, {})
    )
    async with connected(MCPCatalog(tools=[offered]), agents=[reader, desk]) as client:
        result = await client.call_tool(offered.name, arguments)
    assert (result.meta or {}).get("ifc") == {"integrity": "untrusted", "confidentiality": ["ada"]}


async def test_prompts_and_resources_carry_their_labels():
    """The functions of prompts and resources set sources and readers in their context."""

    @mcp_prompt
    def mail(context: ToolContext) -> str:
        """Write a mail."""
        context.origin = "mail"
        return "x"

    @mcp_resource("diary:/today")
    def today(context: ToolContext) -> str:
        """Read the diary."""
        context.readers = [context.owner]
        return "x"

    async with connected(MCPCatalog(prompts=[mail], resources=[today])) as client:
        assert (await client.get_prompt("mail", {})).meta["ifc"] == UNTRUSTED
        assert (await client.read_resource("diary:/today")).meta["ifc"] == PRIVATE


async def test_wrong_arguments_are_an_error_of_the_tool():
    async with connected(MCPCatalog(tools=[add])) as client:
        result = await client.call_tool("add", {"a": 1, "c": 2})
    assert result.is_error
    assert "c" in text_of(result)


async def test_the_tool_gets_the_owner():
    @tool
    def whoami(context: ToolContext) -> str:
        """Return the owner."""
        return context.owner

    async with connected(MCPCatalog(tools=[whoami])) as client:
        assert text_of(await client.call_tool("whoami", {})) == "ada"


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_stops_the_tool(mode):
    started, stopped = trio.Event(), trio.Event()

    @tool
    async def wait() -> str:
        """Wait until cancelled."""
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            stopped.set()

    async def call(scope):
        with scope:
            await client.call_tool("wait", {})

    async with connected(MCPCatalog(tools=[wait]), mode) as client, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(call, scope)
        await started.wait()
        scope.cancel()
        await stopped.wait()


async def test_a_tool_has_a_time_limit():
    @tool(timeout=0.01)
    async def wait() -> str:
        """Wait until cancelled."""
        await trio.sleep_forever()

    async with connected(MCPCatalog(tools=[wait])) as client:
        result = await client.call_tool("wait", {})
    assert result.is_error
    assert "0.01" in text_of(result)


async def test_media_keep_their_order_and_type():
    @tool
    def show() -> list[object]:
        """Return media."""
        return [
            "first",
            Image(media_type="image/png", data=b"png"),
            File(media_type="audio/wav", data=b"wav"),
            File(media_type="text/csv", data=b"a,b", name="my table.csv"),
            File(media_type="application/pdf", data=b"%PDF-", name="x.pdf"),
            File(media_type="application/pdf", url="https://example.com/x.pdf", name="x.pdf"),
        ]

    async with connected(MCPCatalog(tools=[show])) as client:
        found = (await client.call_tool("show", {})).content
    assert [each.type for each in found] == [
        "text",
        "image",
        "audio",
        "resource",
        "resource",
        "resource_link",
    ]
    assert (found[3].resource.text, found[3].resource.uri) == ("a,b", "actgent://files/my%20table.csv")
    assert found[4].resource.blob == "JVBERi0="
    assert found[5].uri == "https://example.com/x.pdf"


async def test_an_object_is_structured_content():
    @tool
    def measure() -> dict[str, float]:
        """Return measurements."""
        return {"metres": 1.5}

    async with connected(MCPCatalog(tools=[measure])) as client:
        result = await client.call_tool("measure", {})
    assert result.structured_content == {"metres": 1.5}
    assert text_of(result) == '{"metres": 1.5}'


@pytest.mark.parametrize("mode", MODES)
async def test_only_tool_errors_show_their_text(mode, caplog):
    @tool
    def refuse() -> str:
        """Raise a ToolError."""
        raise ToolError("not on Sundays")

    @tool
    def crash() -> str:
        """Raise another exception."""
        raise RuntimeError("secret-canary")

    async with connected(MCPCatalog(tools=[refuse, crash]), mode) as client:
        refused = await client.call_tool("refuse", {})
        crashed = await client.call_tool("crash", {})
    assert (text_of(refused), refused.is_error) == ("not on Sundays", True)
    assert (text_of(crashed), crashed.is_error) == (
        "crash failed: the log of the server has the reason",
        True,
    )
    assert "secret-canary" in caplog.text


@pytest.mark.parametrize("mode", MODES)
async def test_progress_of_a_tool_is_sent_in_order(mode):
    @tool
    async def work(context: ToolContext) -> str:
        """Report progress."""
        for done in (0, 50, 50, 20, 100):
            context.progress(done, 100, f"{done} %")
            await trio.sleep(0.01)
        return "done"

    steps = []

    async def progress(done, total, message):
        await trio.lowlevel.checkpoint()
        steps.append((done, total, message))

    async with connected(MCPCatalog(tools=[work]), mode) as client:
        await client.call_tool("work", {}, progress_callback=progress)
    assert steps == [(0, 100, "0 %"), (50, 100, "50 %"), (100, 100, "100 %")]


# --- approvals and questions -------------------------------------------------------------------------------


def paying(**options):
    """Return a tool that needs an approval, and the list of its runs."""
    runs = []

    @tool(approval=ApprovalRequest("Really pay?", **options))
    def pay(euros: int, context: ToolContext) -> str:
        """Pay an amount."""
        runs.append(context.approval)
        return f"paid {euros}"

    return pay, runs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (filling({"approve": True}), "paid 3"),
        (filling({"approve": False}), "the user has rejected it"),
        (filling(action="decline"), "the user has rejected it"),
        (filling(action="cancel"), "the call waits for an approval: Really pay?"),
        (None, "the call waits for an approval: Really pay?"),
    ],
)
async def test_a_tool_with_an_approval_runs_only_if_it_is_approved(mode, answer, text):
    pay, runs = paying()
    async with connected(MCPCatalog(tools=[pay]), mode, elicitation_callback=answer) as client:
        result = await client.call_tool("pay", {"euros": 3})
    is_approved = text == "paid 3"
    assert (text_of(result), result.is_error, len(runs)) == (text, not is_approved, int(is_approved))


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_may_not_decide_does_not_approve(mode):
    pay, runs = paying()
    approve = filling({"approve": True})
    catalog = MCPCatalog(tools=[pay])
    async with connected(catalog, mode, may_decide=lambda _: False, elicitation_callback=approve) as client:
        assert (await client.call_tool("pay", {"euros": 3})).is_error
    assert runs == []


@pytest.mark.parametrize("mode", MODES)
async def test_the_tool_gets_the_values_of_the_approval(mode):
    pay, runs = paying(form=NAME_FORM)
    answer = filling({"name": "Ada"})
    async with connected(MCPCatalog(tools=[pay]), mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("pay", {"euros": 3})) == "paid 3"
    assert [dict(each.content) for each in runs] == [{"name": "Ada"}]


@pytest.mark.parametrize("mode", MODES)
async def test_values_that_mismatch_the_form_are_rejected(mode):
    pay, runs = paying(form=NAME_FORM)
    answer = filling({"name": "A"})
    async with connected(MCPCatalog(tools=[pay]), mode, elicitation_callback=answer) as client:
        result = await client.call_tool("pay", {"euros": 3})
    assert result.is_error
    assert "does not match the form" in text_of(result)
    assert runs == []


async def test_approval_of_one_call_does_not_run_another():
    pay, runs = paying()
    async with connected(MCPCatalog(tools=[pay]), elicitation_callback=filling({"approve": True})) as client:
        call = client.session.call_tool
        asked = await call("pay", {"euros": 3}, allow_input_required=True)
        (key,) = asked.input_requests
        answers = {key: types.ElicitResult(action="accept", content={"approve": True})}
        with pytest.raises(mcp.MCPError):
            await call(
                "pay",
                {"euros": 4},
                input_responses=answers,
                request_state=asked.request_state,
                allow_input_required=True,
            )
        with pytest.raises(mcp.MCPError):
            await call(
                "pay",
                {"euros": 3},
                input_responses=answers,
                request_state=asked.request_state + "x",
                allow_input_required=True,
            )
        again = await call("pay", {"euros": 4}, input_responses=answers, allow_input_required=True)
    assert again.result_type == "input_required"
    assert runs == []


@pytest.mark.parametrize("mode", MODES)
async def test_questions_of_a_tool_continue_with_their_state(mode):
    runs = []

    @tool
    def book(context: ToolContext) -> str:
        """Ask two questions."""
        runs.append(1)
        answer = context.approval
        if answer is None:
            raise ApprovalRequired("Your name?", form=NAME_FORM, again=True, state="first")
        if answer.state == "first":
            raise ApprovalRequired(
                f"{answer.content['name']}, another name?", form=NAME_FORM, again=True, state="second"
            )
        return f"{answer.question} {answer.content['name']}"

    answer = filling({"name": "Ada"}, {"name": "Grace"})
    async with connected(MCPCatalog(tools=[book]), mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("book", {})) == "Ada, another name? Grace"
    assert len(runs) == 3


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_is_the_result_of_a_question_without_another_run(mode):
    @tool
    def choose() -> str:
        """Ask for a colour."""
        raise ApprovalRequired("Which colour?", form={"enum": ["red", "blue"]})

    answer = filling({"answer": "blue"})
    async with connected(MCPCatalog(tools=[choose]), mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("choose", {})) == "blue"


# --- the caller -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_function_asks_its_client_several_questions(mode):
    runs = []

    @tool
    async def greet() -> str:
        """Ask for two names."""
        caller = mcp_caller()
        first = await caller.ask("First name?", NAME_FORM, key="first")
        last = await caller.ask("Last name?", NAME_FORM, key="last")
        runs.append(1)
        return f"{first['name']} {last['name']}"

    answer = filling({"name": "Ada"}, {"name": "Lovelace"})
    async with connected(MCPCatalog(tools=[greet]), mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("greet", {})) == "Ada Lovelace"
    assert len(runs) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_declined_question_gives_none(mode):
    @tool
    async def greet() -> str:
        """Ask for a name."""
        return str(await mcp_caller().ask("Name?", NAME_FORM))

    answer = filling(action="decline")
    async with connected(MCPCatalog(tools=[greet]), mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("greet", {})) == "None"


async def test_mismatching_values_are_requested_again():
    seen = []

    @tool
    async def greet() -> str:
        """Ask for a name."""
        return str(await mcp_caller().ask("Name?", NAME_FORM))

    answer = filling({"name": "A"}, {"name": "Ada"}, seen=seen)
    async with connected(MCPCatalog(tools=[greet]), elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("greet", {})) == "{'name': 'Ada'}"
    assert len(seen) == 2


@tool
async def summarize() -> str:
    """Ask the model of the client."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hello"))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=10)
    request = types.CreateMessageRequest(params=params)
    return (await mcp_caller().request({"summary": request}))["summary"].content.text


async def sample(_context, _params):
    await trio.lowlevel.checkpoint()
    content = types.TextContent(type="text", text="sampled")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


@pytest.mark.parametrize("mode", MODES)
async def test_a_function_samples_the_model_of_its_client(mode):
    async with connected(MCPCatalog(tools=[summarize]), mode, sampling_callback=sample) as client:
        assert text_of(await client.call_tool("summarize", {})) == "sampled"


async def test_a_missing_capability_is_an_error_of_the_protocol_or_of_the_tool():
    catalog = MCPCatalog(tools=[summarize])
    async with connected(catalog) as client:
        with pytest.raises(mcp.MCPError) as refused:
            await client.call_tool("summarize", {})
    assert refused.value.error.code == -32021
    assert refused.value.error.data == {"requiredCapabilities": {"sampling": {}}}
    async with connected(catalog, LEGACY) as client:
        result = await client.call_tool("summarize", {})
    assert result.is_error
    assert "sampling/createMessage" in text_of(result)


async def test_log_messages_have_the_level_of_the_connection():
    @tool
    async def talk() -> str:
        """Log two messages."""
        await mcp_caller().log("info", "quiet")
        await mcp_caller().log("error", {"what": "loud"}, logger="talk")
        return "logged"

    received = []

    async def note(params):
        await trio.lowlevel.checkpoint()
        received.append((params.level, params.data))

    async with connected(MCPCatalog(tools=[talk]), LEGACY, logging_callback=note) as client:
        await client.call_tool("talk", {})
        await client.session.send_request(
            types.SetLevelRequest(params=types.SetLevelRequestParams(level="warning")), types.EmptyResult
        )
        await client.call_tool("talk", {})
    loud = ("error", {"what": "loud"})
    assert received == [("info", "quiet"), loud, loud]


async def test_caller_is_available_only_during_a_call():
    with pytest.raises(ConfigurationError, match="mcp_caller"):
        mcp_caller()


# --- prompts, resources, completions -------------------------------------------------------------------------------


@mcp_prompt(title="Review", completions={"language": ["python", "perl", "c"]})
def review(language: str, strict: bool = False) -> list[object]:
    """Review code.

    Args:
        language: Language of the code.
        strict: True for a strict review.
    """
    message = ChatMessage("assistant", (Text("Which file?"),))
    return [f"Review my {language} {strict}", message, Image(media_type="image/png", data=b"png")]


@mcp_resource(
    "docs://{area}/{page}", media_type="text/markdown", completions={"area": lambda text: [text + "!"]}
)
def page_of(area: str, page: str, context: ToolContext) -> str:
    """Return a page."""
    if page == "crash":
        raise RuntimeError("secret-canary")
    return f"# {area}: {page} for {context.owner}"


@mcp_resource("docs://index", media_type="application/json")
async def index() -> dict[str, int]:
    """Return the index."""
    await trio.lowlevel.checkpoint()
    return {"pages": 2}


@mcp_resource("docs://logo", media_type="image/png", title="Logo")
def logo() -> bytes:
    """Return the logo."""
    return b"png"


READABLE = {"prompts": [review], "resources": [page_of, index, logo]}


@pytest.mark.parametrize("mode", MODES)
async def test_prompts_are_listed_and_filled_in(mode):
    async with connected(MCPCatalog(**READABLE), mode) as client:
        (listed,) = (await client.list_prompts()).prompts
        found = await client.get_prompt("review", {"language": "perl", "strict": "true"})
        with pytest.raises(mcp.MCPError) as unknown:
            await client.get_prompt("nothing")
        with pytest.raises(mcp.MCPError) as incomplete:
            await client.get_prompt("review")
    assert (listed.title, listed.description) == ("Review", "Review code.")
    assert [(each.name, each.description, each.required) for each in listed.arguments] == [
        ("language", "Language of the code.", True),
        ("strict", "True for a strict review.", False),
    ]
    assert [(each.role, each.content.type) for each in found.messages] == [
        ("user", "text"),
        ("assistant", "text"),
        ("user", "image"),
    ]
    assert found.messages[0].content.text == "Review my perl True"
    assert (unknown.value.error.code, incomplete.value.error.code) == (-32602, -32602)


@pytest.mark.parametrize("mode", MODES)
async def test_resources_are_listed_and_read(mode, caplog):
    async with connected(MCPCatalog(**READABLE), mode) as client:
        listed = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        read = [await client.read_resource(uri) for uri in ("docs://index", "docs://logo", "docs://a%20b/c")]
        for uri in (
            "docs://nothing",
            "docs://a/b/c",
            "docs://a/..",
            "docs://a/x%2F..%2Fsecret",
            "docs://a/%00",
        ):
            with pytest.raises(mcp.MCPError) as unknown:
                await client.read_resource(uri)
            assert unknown.value.error.data == {"uri": uri}
        with pytest.raises(mcp.MCPError) as crashed:
            await client.read_resource("docs://a/crash")
    assert [(each.uri, each.name, each.title) for each in listed] == [
        ("docs://index", "index", None),
        ("docs://logo", "logo", "Logo"),
    ]
    assert [each.uri_template for each in templates] == ["docs://{area}/{page}"]
    (index_content,), (logo_content,), (page,) = (each.contents for each in read)
    assert (index_content.text, index_content.mime_type) == ('{"pages": 2}', "application/json")
    assert (logo_content.blob, logo_content.mime_type) == ("cG5n", "image/png")
    assert (page.text, page.mime_type, page.uri) == ("# a b: c for ada", "text/markdown", "docs://a%20b/c")
    assert unknown.value.error.code == (-32002 if mode == LEGACY else -32602)
    assert "secret-canary" not in str(crashed.value)


@pytest.mark.parametrize("mode", MODES)
async def test_arguments_are_completed(mode):
    async with connected(MCPCatalog(**READABLE), mode) as client:
        prompt = types.PromptReference(name="review")
        template = types.ResourceTemplateReference(uri="docs://{area}/{page}")
        found = [
            (await client.complete(ref, {"name": name, "value": value})).completion.values
            for ref, name, value in [
                (prompt, "language", "p"),
                (prompt, "strict", ""),
                (template, "area", "x"),
            ]
        ]
    assert found == [["python", "perl"], [], ["x!"]]


@pytest.mark.parametrize("mode", MODES)
async def test_a_prompt_asks_its_client(mode):
    @mcp_prompt
    async def greet() -> str:
        """Ask for a name."""
        return f"Greet {(await mcp_caller().ask('Name?', NAME_FORM))['name']}"

    answer = filling({"name": "Ada"})
    async with connected(MCPCatalog(prompts=[greet]), mode, elicitation_callback=answer) as client:
        assert (await client.get_prompt("greet")).messages[0].content.text == "Greet Ada"


# --- changes -------------------------------------------------------------------------------


async def test_subscribers_are_notified_of_changes_of_a_resource():
    catalog = MCPCatalog(**READABLE)
    received, was_heard = [], trio.Event()

    async def note(message):
        await trio.lowlevel.checkpoint()
        if isinstance(message, types.ResourceUpdatedNotification):
            received.append(message.params.uri)
            was_heard.set()

    async with connected(catalog, LEGACY, message_handler=note) as client:
        for uri in ("docs://index", "docs://logo"):
            params = types.SubscribeRequestParams(uri=uri)
            await client.session.send_request(types.SubscribeRequest(params=params), types.EmptyResult)
        params = types.UnsubscribeRequestParams(uri="docs://logo")
        await client.session.send_request(types.UnsubscribeRequest(params=params), types.EmptyResult)
        for uri in ("docs://logo", "docs://other", "docs://index"):
            await catalog.publish_change(uri)
        await was_heard.wait()
    assert received == ["docs://index"]
    await catalog.publish_change("docs://index")  # the connection is closed


async def test_listeners_are_notified_of_changes_of_the_catalog():
    from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged

    catalog = MCPCatalog(**READABLE)
    async with connected(catalog) as client:
        async with client.listen(tools_list_changed=True, resource_subscriptions=["docs://index"]) as events:
            await catalog.update(prompts=[])
            await catalog.publish_change("docs://logo")
            await catalog.update(tools=[add])
            await catalog.publish_change("docs://index")
            found = [await anext(events), await anext(events)]
        assert [each.name for each in (await client.list_tools()).tools] == ["add"]
        assert (await client.list_prompts()).prompts == []
    assert found == [ToolsListChanged(), ResourceUpdated(uri="docs://index")]


# --- wrong catalogs -------------------------------------------------------------------------------


async def test_invalid_catalogs_are_rejected():
    @tool
    def with_deps(context: ToolContext[int]) -> int:
        """Need deps."""
        return context.deps

    @tool
    def clerk() -> str:
        """Have the name of an agent."""
        return ""

    with pytest.raises(ConfigurationError, match="'with_deps' cannot run without an agent: it needs deps"):
        MCPCatalog(tools=[with_deps])
    with pytest.raises(ConfigurationError, match="two prompts have the name 'review'"):
        MCPCatalog(prompts=[review, review])
    with pytest.raises(ConfigurationError, match="two resources have the URI 'docs://logo'"):
        MCPCatalog(resources=[logo, logo])
    with pytest.raises(ConfigurationError, match=r"must be the variables of the URI \(page\), not none"):
        mcp_resource("docs://{page}", name="page")(lambda: "")
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        with pytest.raises(ConfigurationError, match="have the name 'clerk'"):
            make_mcp_server(runtime, catalog=MCPCatalog(tools=[clerk]))


# --- the command -------------------------------------------------------------------------------


AGENTS = """
from actgent import BareAgent, ScriptedLLM, tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b

clerk = BareAgent("clerk", llm=ScriptedLLM(lambda chat: "good day"), tools=[add]{options})
other = BareAgent("other", llm=ScriptedLLM(lambda chat: "good day"), tools=[add])
"""


async def test_command_serves_the_tools_of_the_agents(tmp_path):
    (tmp_path / "agents.py").write_text(AGENTS.format(options=""), encoding="utf-8")
    parameters = mcp.StdioServerParameters(
        command=ACTGENT, args=["mcp", "serve", "agents.py", "--tools"], cwd=tmp_path
    )
    with trio.fail_after(120):
        async with mcp.Client(parameters) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "other", "add"]
            assert text_of(await client.call_tool("add", {"a": 1, "b": 2})) == "3"


async def test_command_rejects_tools_of_agents_with_rules(tmp_path):
    source = AGENTS.format(options=", approval=lambda call, tool, context: True")
    (tmp_path / "agents.py").write_text(source, encoding="utf-8")
    done = await trio.run_process(
        [ACTGENT, "mcp", "serve", "agents.py", "--tools"],
        cwd=tmp_path,
        capture_stderr=True,
        check=False,
        stdin=b"",
    )
    assert done.returncode != 0
    assert b"cannot run without it: it has approval= or modes=" in done.stderr
