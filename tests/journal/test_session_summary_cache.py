"""The cache of session heads that the owner of a journal keeps between writes."""

from collections import Counter

from actgent.journal.group_commit.row_format import Head, encode_entry
from actgent.journal.group_commit.session_summary_cache import HeadCache
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import SessionCreatedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender


def heads_of(*names: str) -> dict[SessionKey, Head]:
    """Return heads of sessions of the agent `a`."""
    return {SessionKey("a", name): Head(name, "a") for name in names}


def opened(name: str, parent: str | None = None):
    """Return the first step of a session below a parent."""
    first = SessionCreatedRecord(owner=Sender(kind="user", name="ada"), parent_id=parent, created_at=1.0)
    return encode_entry(Entry(session_id=name, agent="a", records=(first,)))


def test_least_recently_written_heads_are_evicted():
    """A head that is written again stays, and a journal that is only read caches none."""
    known = HeadCache(bound=2)
    for name in ("old", "middle", "old", "new"):
        known.put(heads_of(name))
    assert [key.session_id for key in known.by_key] == ["old", "new"]
    none = HeadCache(bound=0)
    none.put(heads_of("old"))
    assert not none.by_key


def test_head_of_an_uncertain_session_is_cached_after_the_rollback():
    """Until then the cache keeps the head before the step, None for a session that began with it."""
    known = HeadCache()
    known.put(heads_of("s", "other"))
    known.mark_uncertain(heads_of("s", "new"), heads_of("s"))
    assert known.uncertain == {SessionKey("a", "s"): Head("s", "a"), SessionKey("a", "new"): None}
    known.mark_rolled_back(SessionKey("a", "s"))
    known.erase([SessionKey("a", "new")])
    assert known.uncertain == {}
    assert known.by_key == heads_of("other")


def test_new_sessions_get_row_numbers_and_the_root_of_their_parent():
    """The parent may be cached or created in the same step. Numbers count within an epoch."""
    known = HeadCache()
    top = known.begin(opened("top"), {}, epoch=1, now=1.0)
    below = known.begin(opened("below", "top"), {top.key: top}, epoch=1, now=1.0)
    known.put({top.key: top, below.key: below})
    lowest = known.begin(opened("lowest", "below"), {}, epoch=1, now=1.0)
    assert [each.root_id for each in (top, below, lowest)] == ["top", "top", "top"]
    assert len({each.series for each in (top, below, lowest)}) == 3
    known.begin_epoch()
    assert known.begin(opened("top"), {}, epoch=1, now=1.0).series == top.series
    assert not known.by_key


def test_writes_change_the_lists_until_counts_are_unknown():
    """An erased or rolled back session makes the counts unknown, and a rolled back one also the changes."""
    known, key = HeadCache(), SessionKey("a", "s")
    known.changed, known.states = set(), Counter()
    known.note_written(heads_of("s"), {})
    known.note_written(heads_of("s"), heads_of("s"))
    assert (known.changed, known.states[("a", "idle")]) == ({key}, 1)
    known.erase([key])
    assert (known.changed, known.states) == ({key}, None)
    known.mark_uncertain([key], {})
    known.mark_rolled_back(key)
    assert known.changed is None
