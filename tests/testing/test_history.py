"""`find_contradictions` and `actgent journal history`: contradictions in records, and between records and the log of a client."""

import json
import random
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import trio

from actgent import BareAgent, ConfigurationError, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord
from actgent.testing import ClientCall, find_contradictions, load_client_calls

ACTGENT = Path(sys.executable).with_name("actgent")


@tool(effect="once")
async def pay() -> str:
    """Pay."""
    return "paid"


def clerk() -> BareAgent:
    script = [ToolCall("pay", {}), "Paid.", "Hello."]
    return BareAgent("clerk", llm=ScriptedLLM(script, repeat=True), tools=[pay])


async def record(url="memory:"):
    """Return the records of a session with two messages, and the calls of its client."""
    calls = []
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        for number, text in enumerate(("Pay!", "Hi")):
            reply = await agent.run(text, session=session, message_id=f"m{number}")
            times = {"began": number, "ended": number + 0.5}
            calls.append(ClientCall(session_id="s", message_id=f"m{number}", reply=reply.text, **times))
        _, records = await runtime.read_session("s")
    return records, calls


async def test_consistent_history_has_no_contradiction():
    """A history is also consistent if it ends at any record, as that of a running process does."""
    records, calls = await record()
    assert list(find_contradictions(records, calls, is_finished=True)) == []
    for end in range(len(records)):
        assert list(find_contradictions(records[:end])) == []
    with_open_message = records[: next(n for n, r in enumerate(records) if isinstance(r, MessageEndRecord))]
    assert list(find_contradictions(with_open_message, is_finished=True)) == [
        "message m0 has the records accepted"
    ]


def end_twice(records):
    return [each for r in records for each in [r] * (1 + isinstance(r, MessageEndRecord))]


def without_acceptance(records):
    return [r for r in records if not isinstance(r, MessageAcceptedRecord)]


def without_results(records):
    return [r for r in records if not (isinstance(r, AgentMessageRecord) and r.message.tool_results)]


def with_results_twice(records):
    is_result = [isinstance(r, AgentMessageRecord) and bool(r.message.tool_results) for r in records]
    return [each for r, twice in zip(records, is_result, strict=True) for each in [r] * (1 + twice)]


def without_beginning(records):
    return records[1:]


def accepted_late(records):
    accepted = [r for r in records if isinstance(r, MessageAcceptedRecord)]
    return [*(r for r in records if not isinstance(r, MessageAcceptedRecord)), *accepted]


def with_another_answer(records):
    return [
        attrs.evolve(r, message=attrs.evolve(r.message, parts=()))
        if isinstance(r, AgentMessageRecord) and r.stop == "end"
        else r
        for r in records
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (end_twice, "message m0 has the records accepted answered answered"),
        (without_acceptance, "m1 was accepted, but the journal does not have it"),
        (without_results, "the model answers while calls have no result: pay"),
        (with_results_twice, "of pay has 2 results"),
        (without_beginning, "the first record is MessageAcceptedRecord"),
        (accepted_late, "the turn of message m0 begins before the message was accepted"),
        (with_another_answer, "m1 was answered with 'Hello.', but the journal has ''"),
    ],
)
async def test_contradiction_is_described(change, expected):
    """The test changes a recorded session for each kind of contradiction."""
    records, calls = await record()
    problems = list(find_contradictions(change(list(records)), calls))
    assert any(expected in each for each in problems), problems


async def test_sequential_calls_have_the_order_of_the_journal():
    """If a call ended before another began, its record must be first in the journal. Overlapping calls may have any order."""
    records, calls = await record()
    first, second = calls
    swapped = [attrs.evolve(first, began=5, ended=6), second]
    assert list(find_contradictions(records, swapped)) == [
        "m1 was accepted before m0 was sent, but comes after it in the journal"
    ]
    assert list(find_contradictions(records, [attrs.evolve(first, began=1.2, ended=6), second])) == []


def test_one_pass_check_equals_a_comparison_of_all_pairs():
    """The check in one pass finds a contradiction exactly if a comparison of all pairs finds one."""
    rng = random.Random(4)
    found = 0
    for _ in range(300):
        count = rng.randint(2, 6)
        calls = []
        for number in range(count):
            began = rng.randint(0, 8)
            calls.append(
                ClientCall(
                    session_id="s", message_id=f"m{number}", began=began, ended=began + rng.randint(0, 3)
                )
            )
        order = rng.sample(calls, count)
        places = {call.message_id: index for index, call in enumerate(order)}
        is_wrong = any(
            a.ended < b.began and places[a.message_id] > places[b.message_id] for a in calls for b in calls
        )
        problems = list(find_contradictions([_acceptance(call.message_id) for call in order], calls))
        assert any("comes after it" in each for each in problems) is is_wrong
        found += is_wrong
    assert 50 < found < 250


def _acceptance(message_id):
    from actgent.messages import Message, Sender, Text

    message = Message(id=message_id, session_id="s", sender=Sender("ada"), parts=(Text("Hi"),))
    return MessageAcceptedRecord(message=message)


def test_history_command_reports_contradictions(tmp_path):
    """The command reads a journal in use and the log of a client. The exit code is 1 if it finds a contradiction."""

    async def check():
        url = f"sqlite:///{tmp_path}/agents.db"
        _, calls = await record(url)
        log = tmp_path / "calls.jsonl"
        lines = [
            {"session": "s", "message": c.message_id, "began": c.began, "ended": c.ended, "reply": c.reply}
            for c in calls
        ]
        log.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
        wrong = tmp_path / "wrong.jsonl"
        lost = {"session": "s", "message": "lost", "began": 0, "ended": 1}
        other = {**lost, "session": "other"}
        wrong.write_text(f"{json.dumps(lost)}\n{json.dumps(other)}\n", encoding="utf-8")
        async with open_runtime(journal=url) as runtime:
            await runtime.start(clerk())
            return [await trio.to_thread.run_sync(execute, tmp_path, each) for each in (log, wrong)]

    good, bad = trio.run(check)
    assert (good.returncode, good.stdout) == (0, "1 session, 2 calls of clients: 0 contradictions\n"), good
    assert bad.returncode == 1
    assert "clerk s: lost was accepted, but the journal does not have it" in bad.stderr
    assert "the journal has no session other, but a client has called it" in bad.stderr


def execute(folder, log):
    command = [ACTGENT, "journal", "history", "agents.db", "--log", str(log)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_unreadable_log_is_reported(tmp_path):
    """The error names the line and its expected content."""
    log = tmp_path / "calls.jsonl"
    log.write_text('\n{"session": "s"}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"calls.jsonl:2 must be an object with session"):
        load_client_calls(log)
    with pytest.raises(ConfigurationError, match="cannot be read as a log of calls"):
        load_client_calls(tmp_path / "none.jsonl")
