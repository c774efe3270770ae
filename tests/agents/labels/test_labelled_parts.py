"""`Labelled` values in the result of a tool: each part has a label of its own, and isolation withholds only untrusted parts."""

import dataclasses

import pytest

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    Label,
    Labelled,
    Limits,
    Policy,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal

from .test_boundaries import PAY, TEXT, page, sink  # noqa: F401 - sink is a fixture

BOB, EVE = Label({"mail:bob"}), Label({"mail:eve"}, readers={"ada"})
MAILS = [{"id": 1, "text": "Lunch?"}, {"id": 2, "text": Labelled(TEXT, BOB)}]


def lister(value, **options):
    """A trusted tool that returns the value."""

    @tool(effect="pure", **options)
    async def list_mail() -> object:
        """List the mails."""
        return value

    return list_mail


async def _read(value, **options):
    """Return the result of a tool with this value, and the label of the session."""
    llm = ScriptedLLM([ToolCall("list_mail", {}), "ok"])
    async with BareAgent("clerk", llm=llm, tools=[lister(value, **options)]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        return session.history[-2].tool_results[0], session.label


@pytest.mark.parametrize(
    ("value", "label", "text"),
    [
        (MAILS[:1], Label(), '[{"id": 1, "text": "Lunch?"}]'),
        (MAILS[1], BOB, f'{{"id": 2, "text": "{TEXT}"}}'),
        (Labelled(TEXT, BOB), BOB, TEXT),
        (
            (1, Labelled(2, BOB), [Labelled({"a": Labelled(3, EVE)}, Label())]),
            BOB | EVE,
            '[1, 2, [{"a": 3}]]',
        ),
        (Labelled(TEXT, Label(readers={"ada"})), Label(readers={"ada"}), TEXT),
        (Labelled(["x", Labelled("y", EVE)], Label(readers={"bob"})), Label(EVE.sources, ()), '["x", "y"]'),
    ],
    ids=["trusted", "part", "whole", "nested", "readers", "both"],
)
async def test_a_result_has_the_join_of_the_labels_of_its_parts(value, label, text):
    result, found = await _read(value)
    assert (result.label, found, result.content) == (label, label, text)


async def test_a_part_of_an_untrusted_tool_adds_its_source():
    """A label only restricts: a trusted part of an untrusted result stays untrusted."""
    result, _ = await _read([Labelled("x", Label()), Labelled("y", BOB)], untrusted=True)
    assert result.label == Label({"list_mail"}) | BOB


async def test_a_call_after_an_untrusted_part_needs_an_approval(sink):  # noqa: F811
    async with sink.agent([ToolCall("list_mail", {}), PAY, "ok"], tools=[lister(MAILS)]) as agent:
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("mail:bob")


async def test_a_labelled_value_in_an_object_is_not_shown():
    """A value inside of an object other than lists and dicts is no part. Its text does not reach the model."""

    @dataclasses.dataclass
    class Mail:
        text: Labelled

    result, _ = await _read(Mail(Labelled(TEXT, BOB)))
    assert TEXT not in result.content
    assert "<Labelled value of mail:bob>" in result.content


def test_the_label_of_a_part_is_a_label():
    with pytest.raises(ConfigurationError, match="label= must be a Label"):
        Labelled("x", "mail:bob")


def isolated(script, tools, **options):
    """An isolating agent, the requests to its model, and its payments."""
    requests, paid, approvals, steps = [], [], [], iter(script)

    @tool(sinks=("to",))
    async def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    def plan(chat):
        requests.append([(each.role, repr(each.parts)) for each in chat.messages])
        return next(steps)

    agent = BareAgent(
        "clerk",
        llm=ScriptedLLM(plan),
        tools=[pay, *tools],
        policy=Policy(untrusted="isolate"),
        models={"quarantine": ScriptedLLM(["{}"])},
        **options,
    )

    @agent.on_session
    def attach(session):
        @session.on_approval
        async def approve(approval):
            approvals.append((dict(approval.arguments), dict(approval.labels)))
            await session.answer(approval, Approve())

    return agent, requests, paid, approvals


READ = ToolCall("list_mail", {})
SHOWN = (
    '[{"id": 1, "text": "Lunch?"}, {"id": 2, "text": "@r1/1"}]\n'
    "[@r1/1: parts of a result of list_mail, withheld; use extract to ask about @r1]"
)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_isolation_withholds_only_untrusted_parts(is_restarted):
    """The model reads the trusted parts, and uses the other parts by references, also after a restart."""
    rest = [ToolCall("pay", {"to": "@r1/1"}), "It says: @r1/1"]
    script = [READ, "read"] if is_restarted else [READ, *rest]
    async with MemoryJournal().running() as journal:
        agent, requests, paid, asked = isolated(script, [lister(MAILS)])
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            reply = await agent.run("go", session=session)
            assert session.history[2].tool_results[0].content == SHOWN
        if is_restarted:
            agent, requests, paid, asked = isolated(rest, [lister(MAILS)])
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(agent)
                session = await agent.open_session("s")
                reply = await agent.run("go", session=session)
    assert asked == [({"to": TEXT}, {"to": BOB})]
    assert paid == [TEXT]
    assert (reply.text, reply.label) == (f"It says: {TEXT}", BOB)
    assert session.label == Label()
    assert TEXT not in str(requests)


async def test_two_runs_with_different_untrusted_parts_have_equal_requests():
    """The requests of the planning model do not depend on the text of untrusted parts."""
    seen = []
    for text in (TEXT, {"to": ["@r1/1", 3]}):
        tools = [lister([{"id": 1, "text": Labelled(text, BOB)}])]
        script = [
            ToolCall("list_mail", {}, id="c1"),
            ToolCall("extract", {"question": "?", "of": ["@r1/1"]}, id="c2"),
            "ok",
        ]
        agent, requests, _, _ = isolated(script, tools)
        async with agent:
            await agent.run("go", session=await agent.create_session("ada"))
        seen.append(requests)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3


async def test_isolation_withholds_a_whole_labelled_value():
    """A result that is one `Labelled` value is withheld as a whole."""
    agent, _, _, _ = isolated([READ, "It says: @r1"], [lister(Labelled(TEXT, BOB))])
    async with agent:
        session = await agent.create_session("ada")
        reply = await agent.run("go", session=session)
    assert "@r1: a result of list_mail, withheld" in session.history[2].tool_results[0].content
    assert reply.text == f"It says: {TEXT}"


async def test_isolation_withholds_the_values_of_parts_with_the_rest_of_an_untrusted_result():
    """The withheld text of an untrusted result has the values of its parts, and the sources of both."""
    agent, _, _, _ = isolated([READ, "It says: @r1"], [lister(MAILS, untrusted=True)])
    async with agent:
        reply = await agent.run("go", session=await agent.create_session("ada"))
    assert reply.text == f'It says: [{{"id": 1, "text": "Lunch?"}}, {{"id": 2, "text": "{TEXT}"}}]'
    assert reply.label == Label({"list_mail"}) | BOB


async def test_a_long_result_keeps_its_references():
    """A long result is shortened. The notice names its references, and the rest of the result is withheld."""
    value = ["x" * 600, Labelled(TEXT, BOB)]
    script = [ToolCall("list_mail", {}, id="c1"), ToolCall("read_result", {"id": "c1"}), "@r1/1 @r2"]
    agent, requests, _, _ = isolated(script, [lister(value)], limits=Limits(result_characters=500))
    async with agent:
        reply = await agent.run("go", session=await agent.create_session("ada"))
    assert reply.text.startswith(f'{TEXT} [characters 0 to 613 of 613]\n["xxx')
    assert "[@r1/1: parts of a result of list_mail, withheld" in str(requests)
    assert TEXT not in str(requests)


async def test_a_tool_that_stores_an_untrusted_part_in_the_state():
    """The session keeps the sources, because prompts and tools may show the state."""

    @tool
    async def list_mail(context: ToolContext) -> object:
        """List the mails, and store one."""
        context.state.dispatch(("mail", TEXT))
        return MAILS

    agent, _, _, _ = isolated([READ, "ok"], [list_mail])
    async with agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
    assert session.label == BOB


async def test_a_cached_result_keeps_its_parts():
    """A tool with a cache runs again if its result has untrusted parts."""
    tools = [lister(MAILS, cache=10)]
    agent, _, _, _ = isolated([READ, READ, "@r1/1 @r2/1"], tools)
    async with agent:
        reply = await agent.run("go", session=await agent.create_session("ada"))
    assert reply.text == f"{TEXT} {TEXT}"


async def test_an_mcp_client_gets_the_values_and_the_label():
    """A function of a catalog sends the join of the labels in `_meta.ifc`."""
    mcp = pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")
    from actgent.interop.mcp import MCPCatalog, make_mcp_server

    async with open_runtime(journal="memory:") as runtime:
        catalog = MCPCatalog(tools=[lister(MAILS)])
        server = make_mcp_server(runtime, owner_of=lambda _: "ada", catalog=catalog)
        async with mcp.Client(server) as client:
            result = await client.call_tool("list_mail", {})
    assert TEXT in result.content[0].text
    assert result.meta["ifc"]["integrity"] == "untrusted"


async def test_the_readers_of_a_result_with_a_stored_part_stay():
    """If a confidential result has an untrusted part that the call stores, the session keeps its readers and the source."""

    @tool(readers="owner")
    async def list_mail(context: ToolContext) -> object:
        """List the mails, and store one."""
        context.state.dispatch(("mail", TEXT))
        return MAILS

    agent, _, _, _ = isolated([READ, "ok"], [list_mail])
    async with agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
    assert session.label == Label(BOB.sources, readers={"ada"})
