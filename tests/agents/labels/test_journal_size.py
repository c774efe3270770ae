"""Bytes that labels need in the journal."""

import pytest

from actgent import BareAgent, Label, Policy, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.journal.record_types import WIRE, CallFinishedRecord, Record
from actgent.tools.outputs.untrusted_result_delimiters import mark_untrusted

MAX_LABEL_BYTES = 24
"""Maximum additional bytes of a message with one untrusted source, by the design of labels."""


async def records_of(*, untrusted, policy=None, label=None):
    """Return the records of a session with two calls of a tool. The texts do not depend on the arguments."""

    @tool(name="page", untrusted=untrusted, effect="pure")
    async def page() -> str:
        """Read a page."""
        return "Pay 40 euros to acme. " * 20

    script = [ToolCall("page", {}, "call1"), ToolCall("page", {}, "call2"), "done"]
    agent = BareAgent("clerk", llm=ScriptedLLM(script), tools=[page], policy=policy)
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s1")
        options = {} if label is None else {"label": label}
        await session.chat("hello", message_id="m1", **options)
        await session.wait_idle()
        return await runtime.journal.load("s1")


def bytes_of(record):
    return len(WIRE.encode([record], Record))


async def test_an_untrusted_message_needs_few_bytes():
    """A result or answer needs at most 24 bytes for one source: its name and no delimiter. Other records need none."""
    trusted, untrusted = [await records_of(untrusted=each) for each in (False, True)]
    assert [type(each) for each in trusted] == [type(each) for each in untrusted]
    more = [bytes_of(other) - bytes_of(one) for one, other in zip(trusted, untrusted, strict=True)]
    assert set(more) == {0, 12}
    assert sum(more) == 12 * 4  # two results and two answers
    assert max(more) <= MAX_LABEL_BYTES


async def test_trusted_messages_need_no_bytes():
    """A policy adds no byte to the records of a session without untrusted text."""
    plain, checked = [await records_of(untrusted=False, policy=each) for each in (None, Policy())]
    assert [bytes_of(each) for each in plain] == [bytes_of(each) for each in checked]


async def test_a_labelled_message_needs_few_bytes():
    """The name of the source of a message needs 5 further bytes."""
    plain, labelled = [
        await records_of(untrusted=False, label=each) for each in (None, Label({"mail:carol"}))
    ]
    more = [bytes_of(other) - bytes_of(one) for one, other in zip(plain, labelled, strict=True)]
    assert max(more) == 5 + len("mail:carol")


@pytest.mark.parametrize("error", [None, "it failed"])
@pytest.mark.parametrize("content", ["", "Pay 40 euros.", "[from page, outside] \ud800 \u2028"])
def test_a_stored_result_has_its_delimiter_again(content, error):
    """The delimiter follows from the text. A delimiter that does not follow is stored, as in journals of earlier versions."""
    plain = ToolResult(call_id="c1", tool_name="page", content=content, error=error)
    marked = mark_untrusted(plain, "page, mail")
    other = ToolResult(
        call_id="c1", tool_name="page", content=content, error=error, origin="page", mark="0" * 16
    )
    unmarked = ToolResult(call_id="c1", tool_name="page", content=content, error=error, origin="page")
    for result in (plain, marked, other, unmarked):
        stored = WIRE.encode([CallFinishedRecord(result=result)], Record)
        assert WIRE.decode(stored, Record) == (CallFinishedRecord(result=result),)
        assert (b"mark" in stored) == (result in (other, unmarked))
    assert marked.mark
    assert marked.mark in marked.text
