"""A call needs an approval if its audience may not read all data on which the conversation depends.

In most tests, a session reads the diary of its owner, directly or over a boundary. Only `ada` may read it. A later call of
`send` names another reader, so it needs an approval, although the session itself may contain no word of the diary.
"""

import functools

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    Label,
    LongTermMemory,
    Policy,
    Reject,
    ScriptedLLM,
    StaticToolset,
    SummarizingMemory,
    Tool,
    ToolCall,
    ToolContext,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.agents.unapproved_tool_call_audit import audit_session
from actgent.information_flow_labels import TRUSTED, label_of, text_of
from actgent.journal.in_memory_journal import MemoryJournal

from .outer_tool import OuterTool

READ = ToolCall("diary", {})
ONLY_ADA = Label(readers={"ada"})
NOBODY = Label(readers=())


def send_to(*names, **arguments):
    return ToolCall("send", {"to": list(names), **arguments})


@tool(readers="owner", effect="pure")
async def diary() -> str:
    """Read the diary."""
    return "The code is 7."


class Mail:
    """The tool `send` with a log of its calls, and the labels of the approvals that were requested."""

    def __init__(self):
        self.sent, self.asked = [], []

        @tool(name="send", sinks=(), audience="to")
        async def send(to: list[str] | None = None, text: str = "") -> str:
            """Send a mail."""
            self.sent.append(to)
            return "sent"

        self.tool = send

    def agent(self, script, *, name="clerk", tools=(diary,), policy=None, decision=None, **options):
        """An agent under a policy, with the tool `send`."""
        agent = BareAgent(
            name,
            llm=ScriptedLLM(script, keep=0),
            tools=[self.tool, *tools],
            policy=policy or Policy(),
            **options,
        )

        @agent.on_session
        def attach(session):
            @session.on_approval
            async def decide(approval):
                self.asked.append(dict(approval.labels))
                await session.answer(approval, decision or Reject("no"), by="ada")

        return agent

    def assert_asked(self, label=ONLY_ADA):
        """Exactly one call needed an approval, for its receiver and this label, and it did not run."""
        assert (self.asked, self.sent) == ([{"to": label}], [])


@pytest.fixture
def mail():
    return Mail()


async def run(agent, text="go", *, owner="ada", **options):
    """Send one message to a new session of an owner, and return the session with its results."""
    session = await agent.create_session(owner, **options)
    results = []
    session.on_tool_result(results.append)
    await session.chat(text)
    await session.wait_idle()
    return session, results


# --- labels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (TRUSTED, ONLY_ADA, ONLY_ADA),
        (ONLY_ADA, Label(readers={"ada", "bob"}), ONLY_ADA),
        (ONLY_ADA, Label(readers={"bob"}), NOBODY),
        (ONLY_ADA, Label({"page"}), Label({"page"}, {"ada"})),
        (Label({"a"}, {"ada", "eve"}), Label({"b"}, {"ada", "bob"}), Label({"a", "b"}, {"ada"})),
    ],
    ids=str,
)
def test_joined_labels_have_the_common_readers(one, other, both):
    """Readers join by intersection, in both formats of a label."""
    assert one | other == other | one == both
    assert label_of(text_of(one), text_of(other)) == label_of(text_of(other), text_of(one)) == both


@pytest.mark.parametrize("name", ["a, b", "a|b", "a%2Cb", "readers=x", "jürgen", " x ", "<system>"])
def test_the_text_of_a_label_keeps_all_names(name):
    """The names of owners are any texts."""
    label = Label({"page"}, {name, "ada"})
    assert label_of(text_of(label)) == label


def test_readers_remain_if_there_are_too_many_sources():
    """A label with more than 8 sources has the source `*`, and the same readers."""
    label = label_of(text_of(ONLY_ADA), *(f"page{number}" for number in range(9)))
    assert label == Label({"*"}, {"ada"})
    assert label_of(text_of(label)) == label


@pytest.mark.parametrize("wrong", ["ada", [""], [1], {"sources": {"readers=ada"}}], ids=str)
def test_wrong_readers_are_rejected(wrong):
    """A source cannot have the form of readers, so no source counts as trusted."""
    with pytest.raises(ConfigurationError, match="readers="):
        Label(**wrong) if isinstance(wrong, dict) else Label(readers=wrong)


# --- a call ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "is_allowed"),
    [
        (send_to("ada"), True),
        (send_to("bob"), False),
        (send_to("ada", "bob"), False),
        (send_to(), False),
        (ToolCall("send", {"text": "x"}), False),
        (ToolCall("send", {}), False),
    ],
    ids=repr,
)
async def test_all_of_the_audience_must_be_readers(mail, call, is_allowed):
    """A call without receivers may reach anybody. A call of an unrestricted session runs."""
    async with mail.agent([call, READ, call, "ok"]) as agent:
        session, results = await run(agent)
        assert session.label == ONLY_ADA
    assert len(mail.sent) == 1 + is_allowed
    assert len(mail.asked) == (not is_allowed)
    assert [each.status for each in results] == ["success"] * 2 + ["success" if is_allowed else "error"]


async def test_an_approved_call_runs(mail):
    """The approval shows the parameter and the readers, and is valid for these arguments."""
    questions = []
    async with mail.agent([READ, send_to("bob"), "ok"], decision=Approve()) as agent:
        session = await agent.create_session("ada")
        session.on_approval(lambda approval: questions.append(approval.question))
        await session.chat("go")
        await session.wait_idle()
    assert questions == [
        "May the tool 'send' run? Not all readers in to may read the data of the conversation (readers: ada)."
    ]
    assert (mail.asked, mail.sent) == ([{"to": ONLY_ADA}], [["bob"]])


async def test_a_refusal_names_the_parameter_and_no_reader(mail):
    """The rejection does not name readers, because a tool may have copied their names from untrusted data."""
    async with mail.agent([READ, send_to("bob"), "ok"], policy=Policy(violation="refuse")) as agent:
        _, results = await run(agent)
    assert mail.sent == []
    assert results[-1].error == (
        "refused: not all readers in to may read the data of the conversation. It did not run; name only readers that may read "
        "all of it, or ask the user to make this call."
    )


async def test_one_approval_covers_sink_and_audience(mail):
    """A call with an untrusted sink and an excluded reader needs one approval, with both labels."""

    @tool(untrusted=True, effect="pure", readers=("ada", "eve"))
    async def page() -> str:
        """Read a page."""
        return "x"

    @tool(sinks=("text",), audience=("to",))
    async def post(to: str, text: str) -> str:
        """Post a text."""
        return "posted"

    script = [ToolCall("page", {}), ToolCall("post", {"to": "bob", "text": "x"}), "ok"]
    async with mail.agent(script, tools=[page, post]) as agent:
        await run(agent)
    label = Label({"page"}, {"ada", "eve"})
    assert mail.asked == [{"text": label, "to": label}]


async def test_without_a_policy_nothing_is_checked():
    """Without a policy the label is computed, and calls run without an approval."""
    mail = Mail()
    agent = BareAgent("clerk", llm=ScriptedLLM([READ, send_to("bob"), "ok"]), tools=[diary, mail.tool])
    async with agent:
        session, _ = await run(agent)
        assert session.label == ONLY_ADA
    assert mail.sent == [["bob"]]


async def test_confidential_data_is_trusted(mail):
    """Readers do not make sinks untrusted, and the text has no delimiters."""

    @tool(sinks=("to",))
    async def pay(to: str) -> str:
        """Pay."""
        return "paid"

    async with mail.agent([READ, ToolCall("pay", {"to": "bob"}), "ok"], tools=[diary, pay]) as agent:
        session, results = await run(agent)
        assert session.label.is_trusted
    assert mail.asked == []
    assert [each.text for each in results] == ["The code is 7.", "paid"]


async def test_a_tool_names_the_readers_of_one_result(mail):
    """`context.readers` restricts a result further than the declaration."""

    @tool(readers=("ada", "bob"), effect="pure")
    async def document(context: ToolContext, owners: list[str]) -> str:
        """Read a document."""
        context.readers = owners
        return "x"

    script = [ToolCall("document", {"owners": ["bob", "eve"]}), send_to("ada"), send_to("bob"), "ok"]
    async with mail.agent(script, tools=[document]) as agent:
        await run(agent)
    assert (mail.asked, mail.sent) == ([{"to": Label(readers={"bob"})}], [["bob"]])


async def test_restricted_results_are_not_cached(mail):
    """A second call gets the readers of the result again."""

    class Document(Tool):
        name, description, effect, cache = "document", "Read a document.", "pure", 5
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self, arguments, context):
            context.readers = ("ada",)
            return "x"

    document = Document()
    for session in ("a", "b"):
        async with mail.agent([ToolCall("document", {}), send_to("bob"), "ok"], tools=[document]) as agent:
            await run(agent, session_id=session)
    assert mail.asked == [{"to": ONLY_ADA}] * 2


async def test_a_toolset_is_labelled(mail):
    """`labelled` declares readers and audience of the tools of a toolset."""

    @tool(name="post", sinks=())
    async def post(to: str) -> str:
        """Post."""
        return "posted"

    @tool(name="document", effect="pure")
    async def document() -> str:
        """Read a document."""
        return "x"

    declared = StaticToolset("desk", [post, document]).labelled(
        audience={"post": "to"}, readers={"document": "owner"}
    )
    script = [ToolCall("document", {}), ToolCall("post", {"to": "bob"}), "ok"]
    async with mail.agent(script, tools=[declared]) as agent:
        await run(agent)
    mail.assert_asked()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"readers": "ada"}, 'readers= must be "owner"'),
        ({"readers": ("",)}, 'readers= must be "owner"'),
        ({"audience": "receiver"}, "audience= names 'receiver'"),
        ({"readers": "owner", "cache": 5, "effect": "pure"}, "cache= and readers="),
    ],
    ids=str,
)
def test_wrong_declarations_are_rejected(options, error):
    """A wrong declaration would leave a call unchecked."""
    with pytest.raises(ConfigurationError, match=error):
        tool(**options)(_send_one)


def _send_one(to: str) -> str:
    """Send."""
    return to


# --- boundaries --------------------------------------------------------------------------


async def test_a_message_with_readers(mail):
    """`chat(label=)` restricts the readers of a message."""
    async with mail.agent([send_to("bob"), "ok"]) as agent:
        session = await agent.create_session("ada")
        await session.chat("go", label=ONLY_ADA)
        await session.wait_idle()
    mail.assert_asked()


async def test_a_reply_has_the_readers(mail):
    """The label of a reply has the readers of its data."""
    async with mail.agent([READ, "It is 7."]) as agent:
        reply = await agent.run("go", session=await agent.create_session("ada"))
    assert reply.label == ONLY_ADA


@pytest.mark.parametrize("by", ["as_tool", "delegate_to_agent", "run"])
async def test_the_answer_of_another_agent(mail, by):
    """The readers of an answer are those of the session of the other agent. Its owner is the owner of the topmost session."""
    helper = BareAgent("reader", llm=ScriptedLLM([READ, "Seven."]), tools=[diary])

    @tool
    async def consult() -> str:
        """Ask the reader."""
        return str(len((await helper.run("read", session=await helper.create_session("ada"))).text))

    tools, call = {
        "as_tool": (lambda: [helper.as_tool()], ToolCall("reader", {"task": "read"})),
        "delegate_to_agent": (
            delegation_tools,
            ToolCall("delegate_to_agent", {"agent": "reader", "task": "read"}),
        ),
        "run": (lambda: [consult], ToolCall("consult", {})),
    }[by]
    async with open_runtime() as runtime:
        await runtime.start(helper)
        agent = await runtime.start(mail.agent([call, send_to("bob"), "ok"], tools=tools()))
        await run(agent)
    mail.assert_asked()


@pytest.mark.parametrize("by", ["as_tool", "delegate_to_agent"])
async def test_a_task_of_a_restricted_session(mail, by):
    """A delegated task has the readers of the delegating session."""
    sender = mail.agent([send_to("bob"), "ok"], name="sender")
    tools = [sender.as_tool()] if by == "as_tool" else delegation_tools()
    arguments = {"task": "send it"} if by == "as_tool" else {"agent": "sender", "task": "send it"}
    script = [READ, ToolCall("sender" if by == "as_tool" else by, arguments), "ok"]
    async with open_runtime() as runtime:
        await runtime.start(sender)
        agent = await runtime.start(BareAgent("parent", llm=ScriptedLLM(script), tools=[diary, *tools]))
        await run(agent)
    mail.assert_asked()


async def test_a_task_for_an_agent_without_a_policy(mail):
    """A task with restricted data for an agent that nothing checks needs an approval."""
    helper = BareAgent("helper", llm=ScriptedLLM(["ok"]), tools=[mail.tool])
    script = [READ, ToolCall("helper", {"task": "send it"}), "ok"]
    async with open_runtime() as runtime:
        await runtime.start(helper)
        agent = await runtime.start(mail.agent(script, tools=[diary, helper.as_tool()]))
        await run(agent)
    assert mail.asked == [{"task": ONLY_ADA}]


async def test_two_owners_have_no_common_reader(mail):
    """A session that depends on the diaries of two owners has no reader: neither owner may read all of it."""
    shared = mail.agent([READ, "seven", send_to("ada"), send_to("bob"), "ok"], name="shared")

    @tool
    async def consult() -> str:
        """Ask the shared session."""
        return (await shared.run("go", session=held[0])).text

    held = []
    async with open_runtime() as runtime:
        await runtime.start(shared)
        held.append(await shared.create_session("bob"))
        await shared.run("read", session=held[0])
        assert held[0].label == Label(readers={"bob"})
        script = [READ, ToolCall("consult", {}), send_to("ada"), "ok"]
        agent = await runtime.start(mail.agent(script, tools=[diary, consult]))
        session, _ = await run(agent)
        assert (session.label, held[0].label) == (NOBODY, NOBODY)
    assert (mail.asked, mail.sent) == ([{"to": NOBODY}] * 3, [])


@pytest.mark.parametrize("way", ["recall", "before_answer", "replaced"])
async def test_long_term_memory(mail, way, tmp_path):
    """A memory keeps the readers of the session that stored it, also if a later session replaces its text."""
    memories = LongTermMemory(f"sqlite:///{tmp_path}/memories.db")
    options = {"long_term_memory": memories}
    async with mail.agent([READ, ToolCall("remember", {"text": "The code is 7."}), "ok"], **options) as agent:
        await run(agent)
        stored = await memories.recall("", owner="ada")
    if way == "replaced":
        call = ToolCall("remember", {"text": "The code is eight.", "replaces": stored[0].memory.id})
        async with mail.agent([call, "ok"], **options) as agent:
            session, _ = await run(agent)
            assert session.label == TRUSTED
    script = (
        [send_to("bob"), "ok"] if way == "before_answer" else [ToolCall("recall", {}), send_to("bob"), "ok"]
    )
    is_before = way == "before_answer"
    async with mail.agent(script, recall_before_answer=is_before, **options) as agent:
        await run(agent, "What is the code?")
    mail.assert_asked(Label({"memories"}, {"ada"}))


async def test_two_memories_have_their_common_readers(mail, tmp_path):
    """A session that recalls two memories may be read by the readers of both."""
    memories = LongTermMemory(f"sqlite:///{tmp_path}/memories.db")
    script = [ToolCall("recall", {}), send_to("bob"), send_to("eve"), "ok"]
    async with memories:
        for text, readers in (("The code is 7.", "bob|eve"), ("The key is 8.", "bob|ada")):
            await memories.remember(text, owner="ada", metadata={"actgent.readers": readers})
        async with mail.agent(script, long_term_memory=memories) as agent:
            await run(agent)
    assert (mail.asked, mail.sent) == ([{"to": Label({"memories"}, {"bob"})}], [["bob"]])


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, "ada"), ({"actgent.readers": "ada|bob"}, "ada"), ({"actgent.readers": "bob"}, "")],
    ids=str,
)
async def test_a_replaced_memory_keeps_its_metadata(mail, tmp_path, before, after):
    """A replacement by a restricted session restricts the readers, and keeps the values of the program."""
    memories = LongTermMemory(f"sqlite:///{tmp_path}/memories.db")
    async with memories:
        old = await memories.remember("The code is 6.", owner="ada", metadata={"project": "x", **before})
        call = ToolCall("remember", {"text": "The code is 7.", "replaces": old.id})
        async with mail.agent([READ, call, "ok"], long_term_memory=memories) as agent:
            await run(agent)
        found = [each.memory for each in await memories.recall("", owner="ada")]
    assert [dict(each.metadata) for each in found] == [{"project": "x", "actgent.readers": after}]


async def test_a_restart(mail):
    """The journal keeps the readers."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(mail.agent([READ, "ok"]))
            await run(agent, session_id="s")
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(mail.agent([send_to("bob"), "ok"]))
            session = await agent.open_session("s")
            assert session.label == ONLY_ADA
            await agent.run("go on", session=session)
    mail.assert_asked()


async def test_a_summary(mail, autojump_clock):
    """The session keeps the readers after a summary has replaced the result in its requests."""
    texts = []

    def plan(chat):
        if not chat.tools:
            return "They spoke."
        last = chat.messages[-1]
        text = getattr(last.parts[-1], "text", "")
        if last.role == "tool":
            return "ok"
        texts.append([getattr(part, "text", "") for each in chat.messages for part in each.parts])
        return READ if "read" in text else send_to("bob") if "send" in text else "more " * 200

    async with mail.agent(plan, memory=SummarizingMemory(trigger=200, keep=1)) as agent:
        session = await agent.create_session("ada")
        for text in ("read it", "go on", "go on", "go on", "send"):
            await session.chat(text)
            await session.wait_idle()
            await trio.sleep(1)
    assert not any("The code" in text for text in texts[-1])
    mail.assert_asked()


async def test_nested_calls(mail):
    """A nested call is restricted after the outer call has read the diary, and so is the result of the outer call."""

    class Outer(OuterTool):
        async def execute(self, arguments, context):
            found = await context.tools.call("diary", {})
            await context.tools.call("send", {"to": ["bob"]})
            return len(found.content)

    async with mail.agent([ToolCall("outer", {}), "ok"], tools=[diary, Outer()]) as agent:
        await run(agent)
    mail.assert_asked()


async def test_a_stopped_tool_with_an_effect(mail):
    """A tool that is stopped may have stored the data in the state of its session."""

    @tool(readers="owner")
    async def load() -> str:
        """Load the diary."""
        started.set()
        await trio.sleep_forever()

    started = trio.Event()
    async with mail.agent([ToolCall("load", {}), send_to("bob"), "ok"], tools=[load]) as agent:
        session = await agent.create_session("ada")
        await session.chat("go")
        await started.wait()
        await session.interrupt()
        await session.wait_idle()
        assert session.label == ONLY_ADA


# --- isolation ---------------------------------------------------------------------------


@tool(untrusted=True, readers="owner", effect="pure")
async def letter() -> str:
    """Read a letter."""
    return "bob"


@pytest.mark.parametrize("violation", ["ask", "refuse"])
@pytest.mark.parametrize(
    "call", [send_to("bob", text="@r1"), send_to("@r1"), send_to("ada", "@r1")], ids=["data", "name", "names"]
)
async def test_a_withheld_value_keeps_its_readers(mail, call, violation):
    """The planner has not read the letter, but the call sends it. A withheld receiver counts as excluded, also if its value is a permitted reader."""
    policy = Policy(untrusted="isolate", violation=violation)
    async with mail.agent([ToolCall("letter", {}), call, "ok"], tools=[letter], policy=policy) as agent:
        session, _ = await run(agent)
        assert session.label == TRUSTED
    assert mail.sent == []
    assert mail.asked == ([{"to": Label({"letter"}, {"ada"})}] if violation == "ask" else [])


async def test_a_call_without_withheld_values_runs(mail):
    """The planner has read nothing of the letter, so its own values are free."""
    script = [ToolCall("letter", {}), send_to("bob", text="hello"), send_to("ada", text="@r1"), "ok"]
    async with mail.agent(script, tools=[letter], policy=Policy(untrusted="isolate")) as agent:
        await run(agent)
    assert (mail.asked, mail.sent) == ([], [["bob"], ["ada"]])


async def test_trusted_data_with_readers_is_shown(mail):
    """Isolation withholds untrusted text only."""
    async with mail.agent([READ, send_to("bob"), "ok"], policy=Policy(untrusted="isolate")) as agent:
        _, results = await run(agent)
    assert results[0].text == "The code is 7."
    mail.assert_asked()


async def test_an_extract_of_two_results_has_both_labels(mail):
    """The answer of `extract` depends on each result that the question names."""

    @tool(untrusted=True, readers=("bob",), effect="pure")
    async def page() -> str:
        """Read a page."""
        return "x"

    script = [
        [ToolCall("letter", {}), ToolCall("page", {})],
        ToolCall("extract", {"question": "?", "of": ["@r1", "@r2"]}),
        send_to("bob", text="@r3"),
        "ok",
    ]
    policy, models = Policy(untrusted="isolate"), {"quarantine": ScriptedLLM(['"x"'])}
    async with mail.agent(script, tools=[letter, page], policy=policy, models=models) as agent:
        await run(agent)
    mail.assert_asked(Label({"letter", "page"}, ()))


async def test_the_rest_of_a_long_withheld_result(mail):
    """`read_result` labels a withheld result with the readers of all withheld results."""

    @tool(untrusted=True, readers="owner", effect="pure")
    async def book() -> str:
        """Read a book."""
        return "x" * 100_000

    script = [
        ToolCall("book", {}, id="c1"),
        ToolCall("read_result", {"id": "c1"}),
        send_to("bob", text="@r2"),
        "ok",
    ]
    async with mail.agent(script, tools=[book], policy=Policy(untrusted="isolate")) as agent:
        await run(agent)
    mail.assert_asked(Label({"read_result"}, {"ada"}))


# --- other views -------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [Approve(), None], ids=["approved", "no policy"])
async def test_the_audit_finds_calls_with_excluded_readers(mail, decision):
    """The audit reports a call that ran without an approval, and no approved call."""
    make = functools.partial(mail.agent, decision=decision) if decision else _unchecked(mail)
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make([send_to("bob"), READ, send_to("ada"), send_to("bob"), "ok"]))
            await run(agent, session_id="s")
        found = audit_session(await journal.load("s", agent="clerk"), agent)
    assert [(each.call.arguments, dict(each.labels)) for each in found] == (
        [] if decision else [({"to": ["bob"]}, {"to": ONLY_ADA})]
    )


def _unchecked(mail):
    return lambda script: BareAgent("clerk", llm=ScriptedLLM(script), tools=[diary, mail.tool])


async def test_a_withheld_value_in_a_confidential_session(mail):
    """The data of a call with a withheld value has the readers of the conversation, too."""

    @tool(untrusted=True, effect="pure")
    async def page() -> str:
        """Read a page."""
        return "x"

    script = [ToolCall("page", {}), READ, send_to("bob", text="@r1"), "ok"]
    async with mail.agent(script, tools=[diary, page], policy=Policy(untrusted="isolate")) as agent:
        await run(agent)
    mail.assert_asked(Label({"page"}, {"ada"}))
