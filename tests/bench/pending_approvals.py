"""Many evicted sessions with pending approvals: cost after a restart, of lists, of decisions and of expiry.

Another process writes them, so that their memory is not measured here. A twentieth is listed page by page, and some of these are
decided by id. All others expire within a minute, a hundredth of them at the same moment.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Callable

import trio
from measure import ANSWER, Figures, Stopwatch, expect, rss
from timers import START, WRITTEN, offsets, write_all
from trio.lowlevel import checkpoint

from actgent import LLM, Approve, BareAgent, Sender, Text, ToolCall, open_runtime, tool
from actgent.approvals import Approval, approval_id
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    NextTimerRecord,
    SessionCreatedRecord,
    SuspensionRecord,
)
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText
from actgent.messages import Message, ToolResult

DAY = 86_400.0
PAGE = 1000


class Cashier(LLM):
    """A model that answers when all calls are decided, and records the lateness of calls after a deadline."""

    name = "bench:cashier"

    def __init__(self, count: int) -> None:
        self.now: Callable[[], float] = time.time
        self.late: list[float] = []
        self.answered = 0
        self.done = trio.Event()
        self._count = count

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        result = chat.messages[-1].parts[0]
        assert isinstance(result, ToolResult)
        if result.error is None:
            self.answered += 1
        else:
            first = chat.messages[0].parts[0]
            assert isinstance(first, Text)
            self.late.append(self.now() - float(first.text))
        if self.answered + len(self.late) == self._count:
            self.done.set()
        return ModelResponse(parts=(Text(ANSWER),))


def sizes(size: int) -> tuple[int, int, int]:
    """Return how many approvals expire, are listed, and are decided."""
    answering = max(1, size // 50)
    return size - answering, max(1, size // 20), answering


async def wait_for_people(size: int) -> Figures:
    """Open a journal in SQLite after a restart; then list, decide and expire approvals."""
    expiring, listing, answering = sizes(size)
    ran: list[int] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        await checkpoint()
        ran.append(amount)
        return "paid"

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/waits.db"
        await trio.run_process([sys.executable, __file__, url, str(size)])
        model = Cashier(expiring + answering)
        before = rss()
        async with open_runtime(journal=url) as runtime:
            model.now = runtime.clock.now
            agent = await runtime.start(BareAgent("a", llm=model, tools=[pay]))
            pending = rss() - before
            watch = Stopwatch()
            ids, after = list[str](), ""
            while len(ids) < listing:
                page = await agent.approvals(after=after, limit=min(PAGE, listing - len(ids)))
                ids, after = [*ids, *(each.id for each in page)], page[-1].session_id
            list_us, watch = watch.cpu_us(listing), Stopwatch()
            for approval in ids[:answering]:
                await agent.answer(approval, Approve())
            answer_us, watch = watch.cpu_us(answering), Stopwatch()
            await model.done.wait()
            expire_us = watch.cpu_us(expiring)
            grown = rss() - before
        expect(seen=len(set(ids)), wanted=listing, what="approvals listed")
        expect(seen=len(ran), wanted=answering, what="granted calls that ran")
        expect(seen=len(model.late), wanted=expiring, what="approvals that expired")
    return {
        "rss_mb": max(pending, grown) / 1e6,
        "pending_mb": pending / 1e6,
        "late_s": max(model.late),
        "list_us": list_us,
        "answer_us": answer_us,
        "expire_us": expire_us,
    }


async def wait_in_dict(size: int) -> Figures:
    """The floor: an id and a deadline for each approval, and a call for each decision."""
    _, listing, answering = sizes(size)
    before = rss()
    waiting = {f"{number:032x}": time.time() + DAY for number in range(size)}
    pending, watch = rss() - before, Stopwatch()
    ids = [*waiting][:listing]
    list_us, watch = watch.cpu_us(listing), Stopwatch()
    for key in ids[:answering]:
        await checkpoint()
        del waiting[key]
    expect(seen=len(waiting), wanted=size - answering, what="ids left")
    return {
        "rss_mb": (rss() - before) / 1e6,
        "pending_mb": pending / 1e6,
        "late_s": 0.0,
        "list_us": list_us,
        "answer_us": watch.cpu_us(answering),
    }


# --- the other process: approvals from before the restart ------------------------------------


async def write(url: str, size: int) -> None:
    """Write suspended sessions: first those that will be decided, in the order of their ids, then the others."""
    expiring, _, answering = sizes(size)
    first = time.time() + START + size / WRITTEN
    answered = (entry(f"answered {number}", first + 7 * DAY) for number in range(answering))
    others = (entry(f"late {number}", first + offset) for number, offset in enumerate(offsets(expiring)))
    await write_all(url, itertools.chain(answered, others))


def entry(session_id: str, deadline: float) -> Entry:
    """Return a session whose only tool call waits for an approval."""
    message = Message(session_id=session_id, sender=Sender("ada"), parts=(Text(repr(deadline)),))
    call = ToolCall("pay", {"amount": 5}, "c")
    answer = message.caused(Sender("a", "assistant"), (call,), stage=None)
    asked = approval_id(session_id, "c", "pay", call.arguments, "May it?")
    approval = Approval(
        id=asked,
        session_id=session_id,
        agent="a",
        call_id="c",
        tool_name="pay",
        arguments=call.arguments,
        question="May it?",
        deadline=deadline,
    )
    return Entry(
        session_id=session_id,
        agent="a",
        records=(
            SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
            MessageAcceptedRecord(message=message),
            MessageAppendedRecord(message_id=message.id),
            AgentMessageRecord(message=answer, stop="tool_calls", calls=1),
            ApprovalRequestRecord(approval=approval),
            NextTimerRecord(at=deadline),
            SuspensionRecord(message_id=message.id, ids=(asked,)),
        ),
    )


if __name__ == "__main__":
    trio.run(write, sys.argv[1], int(sys.argv[2]))
