"""Untrusted text in logs and errors is bounded and on one line. Equal log records are counted."""

import logging

import pytest
from hypothesis import given, strategies as st

from actgent import BareAgent, ScriptedLLM, Sender
from actgent.errors import SessionNotFound, ToolNotFound
from actgent.errors.text_escaping import quoted, shown
from actgent.support.safe_logging import MAX_PASSED, LogVariable, logger_of, summarise

FORGED = "s\n2026-01-01 CRITICAL actgent: all is well"
STEERING = ["\x1b[2J", "\x00", "\r", "\u202e", "\u2028", "\u2029", "\x85", "\ud800", "\u200b", "\U000e0041"]


@pytest.fixture
def log(caplog):
    """Yield a logger of this package. Its counts are reset before and after the test."""
    summarise(all_of_them=True)
    caplog.set_level(logging.DEBUG)
    yield logger_of("actgent.test_logs")
    summarise(all_of_them=True)


def _raised(text):
    """Return an exception with a traceback."""
    with pytest.raises(ValueError, match="literal") as caught:
        int("words")
    caught.value.args = (text,)
    return caught.value


@given(st.text() | st.binary().map(str), st.integers(1, 300))
def test_shown_text_is_one_printable_bounded_line(text, limit):
    """Any value becomes one bounded line of printable text. Printable text does not change."""
    for each in (shown(text, limit), quoted(text, limit)):
        assert each.isprintable()
        assert len(each) <= 10 * limit + 40
    if text.isprintable() and len(text) <= limit:
        assert shown(text, limit) == text


@pytest.mark.parametrize("steering", STEERING)
def test_log_records_are_one_line(log, caplog, steering):
    """Names, ids and the text of exceptions are escaped before handlers get the record."""
    log.warning("agent %s, session %s", f"a{steering}b", LogVariable(FORGED))
    log.error("it failed: %s", ValueError(FORGED), exc_info=_raised(f"{steering}\n{FORGED}"))
    assert len(caplog.records) == 2
    assert all(record.getMessage().isprintable() for record in caplog.records)
    lines = caplog.text.splitlines()
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026") for line in lines)


def test_log_records_are_bounded(log, caplog):
    """A name of 200,000 characters and the text of an exception are truncated, with a note of their length."""
    log.warning("actor %s: %s", "a" * 200_000, ValueError("b" * 200_000))
    log.error("it failed", exc_info=_raised("c" * 200_000))
    assert all(len(record.getMessage()) < 1_500 for record in caplog.records)
    assert "(200,000 characters)" in caplog.text
    assert len(caplog.text) < 5_000


def test_thousand_equal_records_become_one_with_a_count(log, caplog):
    """The log has the first record and, at the end, the number of the others. Records with other text are all logged."""
    for number in range(1_000):
        log.warning("agent %s failed", "a")
        if number % 100 == 0:
            log.warning("agent %s failed", f"b{number}")
    summarise(all_of_them=True)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "agent a failed",
        *[f"agent b{number} failed" for number in range(0, 1_000, 100)],
        "999 more records like this one: agent a failed",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_ids_do_not_split_record_groups(log, caplog):
    """Records that differ only in ids form one group. The first ones are logged, and the others are counted."""
    for number in range(1_000):
        log.error("session %s failed after %.1f s", LogVariable(f"s{number}"), number / 10)
    summarise(all_of_them=True)
    assert len(caplog.records) == MAX_PASSED + 1
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(f"{1_000 - MAX_PASSED} more records like this one: session s999")
    )


def test_levels_templates_and_errors_split_record_groups(log, caplog):
    """Records with another level, template or error are counted separately."""
    for error in (ValueError("x"), KeyError("x"), ValueError("y")):
        log.error("it failed: %s", type(error).__name__, exc_info=error)
        log.warning("it failed: %s", type(error).__name__)
    log.error("it failed again: %s", "ValueError")
    assert len(caplog.records) == 6, "the second warning of a ValueError is equal to the first"


def test_record_window_ends(log, caplog, monkeypatch):
    """After the window, the next record logs the count and starts a new count."""
    now = [0.0]
    monkeypatch.setattr("actgent.support.safe_logging.time.monotonic", lambda: now[0])
    for _ in range(3):
        log.warning("again")
    now[0] = 61.0
    log.warning("again")
    assert [record.getMessage() for record in caplog.records] == [
        "again",
        "2 more records like this one: again",
        "again",
    ]


def test_errors_quote_ids_bounded_and_on_one_line():
    """The text of the error has the id from the caller, escaped and truncated."""
    for error in (SessionNotFound("a", FORGED), ToolNotFound("\x1b" * 100_000)):
        assert str(error).isprintable()
        assert len(str(error)) < 2_000


async def test_failing_agent_does_not_flood_the_log(caplog, autojump_clock):
    """A thousand equal failures are a few records and a count, which is logged when the agent ends."""

    def fail(_):
        raise RuntimeError("no model")

    async with BareAgent("a", llm=ScriptedLLM(fail, repeat=True)) as agent:
        sessions = [await agent.create_session(Sender("u")) for _ in range(50)]
        for session in sessions:
            for _ in range(20):
                await session.chat("hi")
        for session in sessions:
            await session.wait_idle()
    assert len(caplog.records) == MAX_PASSED + 1
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(f"{1_000 - MAX_PASSED} more records like this one: agent a, session ")
    )


def test_unprintable_traceback_does_not_fail_logging(caplog):
    """Logging raises nothing for an error whose attributes raise, or that is deeply nested."""

    class Uncaused(Exception):
        @property
        def __cause__(self):
            raise ValueError("no cause")

    deep = ValueError("deep")
    for _ in range(3000):
        deep = ExceptionGroup("nested", [deep])
    for error in (Uncaused(), deep):
        logger_of("actgent.odd").error("it failed", exc_info=error)
    assert [type(record.exc_info[1]) for record in caplog.records] == [Uncaused, ExceptionGroup]
    assert all(record.exc_text for record in caplog.records)
    assert "Uncaused (its traceback cannot be written)" in caplog.records[0].exc_text
