"""The journal has what handlers received: replies, events, routes, reasons of failures, and durations of calls."""

import json

import attrs
import pytest
import trio

from actgent import (
    BareAgent,
    Event,
    RateLimitedModel,
    RateLimiter,
    ReActAgent,
    Reply,
    Route,
    RouterAgent,
    ScriptedLLM,
    SimpleAgent,
    open_runtime,
)
from actgent.errors import NotAuthorized
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import AgentMessageRecord, DeliveryRecord, MessageEndRecord, OutcomeRecord
from actgent.testing import CrashingJournal

LONG = 'He said "no",\nand left für Köln. ' * 40
NAMES = {"role": "clerk", "goal": "help", "capabilities": "words"}


@attrs.frozen
class Order:
    """The answer of an agent."""

    article: str
    count: int


def outcome(delivery):
    """Return id, kind, name, text and data of a reply, event or route, as its `OutcomeRecord` has them."""
    match delivery:
        case Reply():
            name, text = delivery.message_type or "", delivery.text
        case Event():
            name, text = delivery.name, None
        case Route():
            name, text = delivery.action, None
    data = attrs.asdict(delivery.data) if attrs.has(type(delivery.data)) else delivery.data
    return (delivery.id, type(delivery).__name__.lower(), name, text, data)


def told_in(records):
    """Return the `outcome` tuples of the delivered outcomes in `records`, from plain answers and from `OutcomeRecord`s."""
    texts = {
        record.message.id: record.message.text for record in records if isinstance(record, AgentMessageRecord)
    }
    told = {each.id: each for each in records if isinstance(each, OutcomeRecord)}
    for record in records:
        for each in record.ids if isinstance(record, DeliveryRecord) else ():
            if each in told:
                found = told[each]
                data = None if found.data is None else json.loads(found.data)
                yield (found.id, found.kind, found.name, found.text, data)
            else:
                yield (each, "reply", "", texts[each], None)


def answer(**members):
    return json.dumps(members, ensure_ascii=False)


CASES = {
    "bare": (lambda llm: BareAgent("a", llm=llm), LONG),
    "simple": (
        lambda llm: SimpleAgent("a", llm=llm, **NAMES),
        answer(messageType="DIRECT_RESPONSE", content=LONG),
    ),
    "simple with escapes": (
        lambda llm: SimpleAgent("a", llm=llm, **NAMES),
        json.dumps({"messageType": "DIRECT_RESPONSE", "content": LONG}),
    ),
    "typed": (lambda llm: BareAgent("a", llm=llm, output=Order), answer(article="a long rope" * 5, count=3)),
    "router": (
        lambda llm: RouterAgent("a", llm=llm, **NAMES),
        answer(top_level_intent="ACTION", second_level_intent="BOOK", data={"room": "the large one" * 4}),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_outcomes_are_recorded_as_delivered(case):
    """The records are in order for every answer format, and the feed delivers the same."""
    make, text = CASES[case]
    received = []
    async with open_journal("memory:") as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make(ScriptedLLM([text])))
        session = await agent.create_session("ada", session_id="s")
        for attach in (session.on_conversation, session.on_event, session.on_routing):
            attach(received.append)
        async with journal.feed() as feed:
            await session.chat("hello")
            await session.wait_idle()
            records = await journal.load("s")
            steps = [await feed.receive()]
            while steps[-1].last < len(records):
                steps.append(await feed.receive())
    assert received
    assert list(told_in(records)) == [outcome(each) for each in received]
    assert [record for step in steps for record in step.records] == list(records[1:])


@pytest.mark.parametrize("case", ["bare", "simple", "typed", "router"])
async def test_text_of_outcomes_is_stored_once(case):
    """References to the answer add at most a tenth to a turn's bytes, and nothing if the answer is the reply."""
    make, text = CASES[case]
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make(ScriptedLLM([text])))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("hello")
        await session.wait_idle()
        records = await journal.load("s")
        rows = next(iter(journal._stored_rows.values()))
        size = sum(len(row.body) for row in rows)
        epoch = await journal.acquire()
    received = [record for record in records if isinstance(record, OutcomeRecord)]
    assert bool(received) == (case != "bare")
    assert size < 850 + 1.1 * len(text.encode())
    assert epoch


async def test_outcomes_are_recorded_once_across_crashes():
    """If the process dies at any write, each outcome has one record, written before the delivery."""
    make, text = CASES["simple"]
    writes = 0
    while True:
        writes += 1
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)
            async with trio.open_nursery() as nursery:

                async def live(journal=dying, nursery=nursery):
                    async with open_runtime(journal=journal) as runtime:
                        agent = await runtime.start(make(ScriptedLLM([text, text])))
                        session = await agent.ensure_session("ada", session_id="s")
                        await session.chat("hello", message_id="m1")
                        await session.wait_idle()
                    nursery.cancel_scope.cancel()

                async def watch(journal=dying, nursery=nursery):
                    await journal.died.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(live)
                nursery.start_soon(watch)
            async with open_runtime(journal=inner) as runtime:
                agent = await runtime.start(make(ScriptedLLM([text, text])))
                session = await agent.ensure_session("ada", session_id="s")
                await session.chat("hello", message_id="m1")
                await session.wait_idle()
                records = await inner.load("s")
            kinds = [type(record) for record in records if isinstance(record, OutcomeRecord | DeliveryRecord)]
            assert kinds == [OutcomeRecord, DeliveryRecord], writes
        if not dying.is_dead:
            break
    assert writes > 3


async def test_outcomes_have_redacted_text():
    """Positions in the answer are not used if the text was redacted."""
    text = answer(messageType="DIRECT_RESPONSE", content=f"4111 1111 is your number. {LONG}")
    journal = MemoryJournal()
    async with (
        journal.running(),
        open_runtime(journal=journal, redact=lambda text: text.replace("4111 1111", "[card]")) as runtime,
    ):
        agent = await runtime.start(CASES["simple"][0](ScriptedLLM([text])))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("hello")
        await session.wait_idle()
        records = await journal.load("s")
    (received,) = [record for record in records if isinstance(record, OutcomeRecord)]
    assert received.text == f"[card] is your number. {LONG}"
    assert "4111" not in repr(records)


async def test_failure_reasons_are_recorded():
    """Reasons have actgent's text. Exceptions of user code are recorded by class only."""

    def fail(chat):
        if chat.messages[-1].parts[0].text == "one":
            raise NotAuthorized("the key was refused", model="x")
        raise RuntimeError("the password is swordfish")

    async with open_journal("memory:") as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(fail)))
        session = await agent.create_session("ada", session_id="s")
        session.on_exception(print)
        for text in ("one", "two"):
            await session.chat(text)
            await session.wait_idle()
        records = await journal.load("s")
    one, two = [record for record in records if isinstance(record, MessageEndRecord)]
    assert (one.failed, one.error) == ("model", "NotAuthorized")
    assert "the key was refused" in one.error_text
    assert two.failed == "model"
    assert two.error
    assert "swordfish" not in repr(records)


async def test_durations_of_model_calls_are_recorded(autojump_clock):
    """The record has the seconds of waiting for rate limits, on trio's clock."""
    rate_limiter = RateLimiter(requests_per_minute=60, burst=1 / 60)
    async with open_journal("memory:") as journal, open_runtime(journal=journal) as runtime:
        llm = RateLimitedModel(ScriptedLLM(["hi"], repeat=True), rate_limiter)
        agent = await runtime.start(BareAgent("a", llm=llm))
        session = await agent.create_session("ada", session_id="s")
        for text in ("one", "two"):
            await session.chat(text)
            await session.wait_idle()
        records = await journal.load("s")
    first, second = [record for record in records if isinstance(record, AgentMessageRecord)]
    assert first.waited == 0
    assert second.waited == pytest.approx(1, abs=0.01)
    assert first.seconds > 0


async def test_reply_of_a_react_agent_is_its_final_answer():
    """The text may be at any position of the answer format."""
    text = answer(
        question_nature={"category": "SIMPLE", "confidence_level": 90},
        context={"what_we_know": "all"},
        primary_action={"response_purpose": "DIRECT_RESPONSE", "response_content": {"content": LONG}},
    )
    received = []
    async with open_journal("memory:") as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(ReActAgent("a", llm=ScriptedLLM([text], repeat=True), **NAMES))
        session = await agent.create_session("ada", session_id="s")
        session.on_conversation(received.append)
        await session.chat("hello")
        await session.wait_idle()
        records = await journal.load("s")
    assert [each for each in told_in(records) if each[1] == "reply"] == [outcome(each) for each in received]
