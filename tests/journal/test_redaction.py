"""Journals with redacted texts, and sessions that are restored from them."""

import json
import re

import pytest
import trio
import trio.testing

from actgent import BareAgent, ReActAgent, ScriptedLLM, SimpleAgent, ToolCall, open_runtime, tool
from actgent.approvals import Approve, Edit, Reject
from actgent.errors import ConfigurationError
from actgent.journal.group_commit.row_format import decompress
from actgent.journal.in_memory_journal import MemoryJournal

SECRET = "ada@example.org"
WRITE = ToolCall("write", {"to": [SECRET], "note": "hello"})
REACT_WRITE = json.dumps(
    {
        "primary_action": {
            "response_purpose": "TOOL_INVOCATION",
            "response_content": {"name": "write", "parameters": {"to": [SECRET], "note": "hello"}},
        }
    }
)


def redact(text):
    return re.sub(r"\w+@[\w.]+", "(mail)", text)


def writing(wrote, *, hang=None, **options):
    @tool(**options)
    async def write(to: list[str], note: str) -> str:
        """Send a message to a recipient."""
        wrote.append(to)
        if hang is not None:
            hang.set()
            await trio.sleep_forever()
        return f"wrote to {to}"

    return write


def stored(journal):
    """Return all bodies of a journal in memory, before compression."""
    return b"".join(decompress(row.body) for rows in journal._stored_rows.values() for row in rows)


async def until(journal, agent, event, content="go"):
    """A process that ends when the event is set."""
    with trio.CancelScope() as scope:
        async with open_runtime(journal=journal, redact=redact) as runtime:
            await runtime.start(agent)
            await agent.create_session("ada", content, session_id="s")
            await event.wait()
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()


async def resume(journal, agent):
    """Run the next process. Return the session when it is idle."""
    async with open_runtime(journal=journal, redact=redact) as runtime:
        await runtime.start(agent)
        session = await agent.open_session("s")
        for approval in await agent.approvals():
            await agent.answer(approval, Approve())
        await session.wait_idle()
        return session.history


async def test_arguments_of_several_calls_in_text_are_redacted(autojump_clock):
    """The journal stores them with the results, because no other record has them."""
    wrote = []
    calls = [{"name": "write", "parameters": {"to": [name], "note": "n"}} for name in (SECRET, "bob")]
    asked = json.dumps({"messageType": "TOOL_INVOCATION", "content": calls})
    answers = [asked, json.dumps({"messageType": "DIRECT_RESPONSE", "content": "done"})]
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, redact=redact) as runtime:
            agent = await runtime.start(SimpleAgent("a", llm=ScriptedLLM(answers), tools=[writing(wrote)]))
            session = await agent.create_session("ada", "write")
            await session.wait_idle()
        assert sorted(wrote) == [[SECRET], ["bob"]]
        assert SECRET.encode() not in stored(journal)


async def test_records_are_redacted_and_the_running_session_is_not(autojump_clock):
    """Redacted are messages, answers, calls, results, states, failures, approvals, decisions and schedules."""
    wrote = []
    answers = [WRITE, ToolCall("write", {"to": ["bob"], "note": "n"}), f"done, {SECRET}"]
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, redact=redact) as runtime:
            agent = await runtime.start(
                BareAgent("a", llm=ScriptedLLM(answers), tools=[writing(wrote, approval=True)])
            )
            session = await agent.create_session("ada", f"I am {SECRET}")
            await session.wait_idle()
            (approval,) = session.approvals
            assert approval.arguments["to"] == [SECRET]
            await session.answer(approval, Edit({"to": [SECRET, SECRET], "note": "n"}, SECRET))
            await session.wait_idle()
            await session.answer(session.approvals[0], Reject(f"not {SECRET}"))
            await session.wait_idle()
            session.state.dispatch(("mail", {"of": [SECRET, 1]}))
            with pytest.raises(ZeroDivisionError):
                session.state.dispatch(lambda _: 1 / 0)
            await session.schedule(f"write to {SECRET}", after=1e6, metadata={"to": SECRET})
            assert session.state["mail"] == {"of": [SECRET, 1]}
            assert SECRET in session.history[0].text
            assert SECRET in session.history[-1].text
        assert wrote == [[SECRET, SECRET]]
        assert SECRET.encode() not in stored(journal)
        assert b"(mail)" in stored(journal)


async def test_a_restarted_session_has_redacted_text(autojump_clock):
    """Text that was not redacted is unchanged."""
    seen = []

    def answer(chat):
        seen.append([part.text for message in chat.messages for part in message.parts])
        return "yes"

    async with MemoryJournal().running() as journal:
        for text in (f"I am {SECRET}", "who am I?"):
            async with open_runtime(journal=journal, redact=redact) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer)))
                session = await agent.ensure_session("ada", "s")
                await agent.run(text, session=session)
    assert seen == [[f"I am {SECRET}"], ["I am (mail)", "yes", "who am I?"]]


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
@pytest.mark.parametrize("kind", [BareAgent, ReActAgent])
async def test_started_call_with_redacted_arguments_never_runs_again(autojump_clock, effect, kind):
    """Its tool would get other arguments. The result of the call is unknown."""
    started, wrote = trio.Event(), []
    said = WRITE if kind is BareAgent else REACT_WRITE
    async with MemoryJournal().running() as journal:
        tools = [writing([], hang=started, effect=effect)]
        await until(journal, kind("a", llm=ScriptedLLM([said]), tools=tools), started)
        tools = [writing(wrote, effect=effect)]
        done = json.dumps(
            {"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": "done"}}
        )
        llm = ScriptedLLM([done])
        history = await resume(journal, kind("a", llm=llm, tools=tools))
    assert wrote == []
    assert len(llm.chats) == 1
    results = [result for message in history for result in message.tool_results]
    texts = [message.text for message in history if message.sender.kind == "system"]
    if kind is BareAgent:
        assert [result.status for result in results] == ["error" if effect == "pure" else "outcome_unknown"]
    else:
        assert "not known" in texts[0]


async def test_an_approved_call_whose_arguments_are_redacted_does_not_run(autojump_clock):
    """The call does not run either if the decision passes the approval, whose arguments the journal redacted."""
    wrote, requested = [], trio.Event()
    async with MemoryJournal().running() as journal:
        agent = BareAgent("a", llm=ScriptedLLM([WRITE]), tools=[writing(wrote, approval=True)])
        agent.on_session(lambda session: session.on_approval(lambda _: requested.set()))
        await until(journal, agent, requested)
        agent = BareAgent("a", llm=ScriptedLLM(["done"]), tools=[writing(wrote, approval=True)])
        history = await resume(journal, agent)
    assert wrote == []
    assert [result.status for message in history for result in message.tool_results] == ["error"]


@pytest.mark.parametrize("failure", [ZeroDivisionError("x"), SystemExit(2), None])
async def test_texts_that_cannot_be_redacted_are_not_written(autojump_clock, caplog, failure):
    """A function that raises or returns no text removes the text from the journal and has no other effect."""

    def broken(text):
        if failure is not None:
            raise failure

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, redact=broken) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["yes"])))
            assert str(await agent.run(SECRET)) == "yes"
        assert SECRET.encode() not in stored(journal)
    assert "not written to the journal" in caplog.text
    assert SECRET not in caplog.text


async def test_async_redact_function_is_rejected():
    async def waits(text):
        return text

    for wrong in ("text", waits):
        with pytest.raises(ConfigurationError, match="redact="):
            async with open_runtime(journal="memory:", redact=wrong):
                pass
