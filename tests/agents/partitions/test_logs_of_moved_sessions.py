"""The `SessionLog` of a moved session writes no more records."""

import pytest

from actgent import Sender, SessionMoved
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import SessionCreatedRecord, StateChangeRecord
from actgent.sessions.session_record_writer import SessionLog


def change(number):
    return StateChangeRecord(changes={"n": number})


@pytest.fixture
async def log():
    """Yield a log with one written step and one record that waits for the next step."""
    async with open_journal("memory:") as journal:
        opened = SessionLog("s", "clerk", journal, await journal.acquire())
        await opened.write(SessionCreatedRecord(owner=Sender("ada", "user"), created_at=1.0), change(1))
        opened.add(change(2))
        yield opened


async def kept(log):
    return len(await log._journal.load("s", agent="clerk"))


async def test_pending_step_is_not_written_after_a_move(log):
    """A pending step is discarded, because the new owner has not read it."""
    log.abandon()
    assert log.is_idle
    log.flush_soon()
    with pytest.raises(SessionMoved):
        await log.flush()
    assert await kept(log) == 2


async def test_later_records_are_not_written_after_a_move(log):
    """Queued records are discarded, and immediate writes raise `SessionMoved`."""
    log.abandon()
    log.add(change(3))
    log.flush_soon()
    assert log.is_idle
    with pytest.raises(SessionMoved):
        await log.write(change(4))
    with pytest.raises(SessionMoved):
        log.record_state_change(change(5))
    assert await kept(log) == 2


async def test_the_id_of_a_moved_session_stays_used(log):
    """`withdraw()` closes nothing, because the session belongs to the other process."""
    log.abandon()
    assert not log.withdraw()
    assert log.is_idle
    assert await kept(log) == 2
