"""Of two who make a session of one id the journal takes one, whoever they are; the other hears of it, and none of its steps is written."""

from functools import partial

import attrs
import pytest
import trio

from actgent.errors import JournalFull, SessionExists
from actgent.journal.base import Creation, Entry
from actgent.journal.listing import SessionKey
from actgent.journal.opening import open_journal
from actgent.journal.records import Changed, Closed, Opened
from actgent.journal.wrapped import RelaxedJournal
from actgent.messages import Sender


def first(name):
    """The first record of a session of this owner."""
    return Opened(owner=Sender(name), created_at=1.0)


def step(*records, creation=None):
    return Entry(session_id="s", agent="a", records=records, creation=creation)


async def refusals(*calls):
    """Make calls at once; returns those that heard that there is such a session, by their place."""
    refused = []

    async def make(number, call):
        try:
            await call()
        except SessionExists:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(make, number, call)
    return refused


@pytest.mark.parametrize("wrap", [lambda journal: journal, RelaxedJournal])
async def test_of_two_who_begin_at_once_one_does(journal, wrap):
    """Also where what is confirmed may not be on the disk yet."""
    journal = wrap(journal)
    commit = partial(journal.commit, epoch=await journal.acquire())
    names = ["ada", "bob", "eve"]
    refused = await refusals(*(partial(commit, step(first(name))) for name in names))
    (winner,) = {*range(len(names))} - {*refused}
    assert await journal.load("s") == (first(names[winner]),)
    assert await refusals(partial(commit, step(first("joe")))) == [0]
    await commit(step(Closed()))
    assert await journal.load("s") == (first(names[winner]), Closed())


async def test_one_that_nobody_has_read_since_the_start_is_found(lasting_url):
    """Nothing looks for it before the first step is written."""
    async with open_journal(lasting_url) as journal:
        await journal.commit(step(first("ada")), epoch=await journal.acquire())
    async with open_journal(lasting_url) as journal:
        epoch = await journal.acquire()
        for _ in range(2):
            with pytest.raises(SessionExists, match="agent 'a' has a session 's' already"):
                await journal.commit(step(first("bob"), Changed(changes={"n": 1})), epoch=epoch)
        assert await journal.load("s") == (first("ada"),)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_nothing_is_written_of_one_that_was_refused(journal, is_stored):
    """Whatever its maker queues, before it hears of that or after; others go on with the session that is there."""
    epoch, creation = await journal.acquire(), Creation()
    journal.write_soon(step(first("ada")), epoch=epoch)
    if is_stored:
        await journal.commit(step(), epoch=epoch)
    journal.write_soon(step(first("bob"), creation=creation), epoch=epoch)
    journal.write_soon(step(Changed(changes={"n": 1}), creation=creation), epoch=epoch)
    with pytest.raises(SessionExists):
        await journal.commit(step(creation=creation), epoch=epoch)
    journal.write_soon(step(Closed(unused=True), creation=creation), epoch=epoch)
    await journal.commit(step(Changed(changes={"n": 2})), epoch=epoch)
    assert await journal.load("s") == (first("ada"), Changed(changes={"n": 2}))


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_session_that_is_kept_for_want_of_space_is_there(journal, monkeypatch, is_kept):
    """Nobody waits for it any more, and it is written once there is room; one that is not kept may be made by another."""
    epoch, write = await journal.acquire(), journal._write

    async def fail(*_):
        raise JournalFull("no space")

    monkeypatch.setattr(journal, "_write", fail)
    monkeypatch.setattr(type(journal), "_may_start", False)
    with pytest.raises(JournalFull):
        await journal.commit(attrs.evolve(step(first("ada")), is_kept=is_kept), epoch=epoch)
    monkeypatch.setattr(journal, "_write", write)
    assert await refusals(partial(journal.commit, step(first("bob")), epoch=epoch)) == [0] * is_kept
    assert await journal.load("s") == (first("ada" if is_kept else "bob"),)


@pytest.mark.parametrize("erase", ["delete", "erase_trees"])
async def test_what_is_kept_of_an_erased_session_is_gone_with_it(journal, monkeypatch, erase):
    """It would be a session without a first step."""
    epoch, write, key = await journal.acquire(), journal._write, SessionKey("a", "s")

    async def fail(*_):
        raise JournalFull("no space")

    await journal.commit(step(first("ada")), epoch=epoch)
    monkeypatch.setattr(journal, "_write", fail)
    monkeypatch.setattr(type(journal), "_may_start", False)
    with pytest.raises(JournalFull):
        await journal.commit(attrs.evolve(step(Changed(changes={"n": 1})), is_kept=True), epoch=epoch)
    monkeypatch.setattr(journal, "_write", write)
    if erase == "delete":
        await journal.delete("s", agent="a")
    else:
        assert await journal.erase_trees([key]) == [key]
    await journal.commit(step(first("bob")), epoch=epoch)
    assert await journal.load("s") == (first("bob"),)


async def test_an_owner_of_partitions_refuses_a_second_session(postgres_url):
    """As the owner of a whole journal does."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    from actgent.journal.postgres import PartitionedJournal

    async with PartitionedJournal(postgres_url, node="a", partitions=4).running() as journal:
        await journal.acquire()
        await journal.take(range(4))
        commit = partial(journal.commit, epoch=journal.epoch_of("s"))
        assert len(await refusals(*(partial(commit, step(first(name))) for name in ("ada", "bob")))) == 1
        assert len(await journal.load("s")) == 1
