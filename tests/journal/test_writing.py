"""Steps in SQLite: a head is complete and found by all lists, whichever of its columns a step changes."""

import itertools
import random

import attrs
import pytest

from actgent.journal.group_commit.row_format import Head, Row
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.sqlite import SQLiteJournal


@pytest.fixture
def file(tmp_path):
    """Yield an open journal in a file."""
    journal = SQLiteJournal(tmp_path / "journal.db")
    journal._own()
    yield journal._file
    journal._shut()


def head_of(session_id):
    return Head(
        session_id, "a", owner="ada", created_at=1.0, root_agent="a", root_id=session_id, series=session_id
    )


def changed(rng, head):
    """Return the head after one more step, which changes many columns or almost none."""
    head = attrs.evolve(head, records=head.records + 1, updated_at=head.updated_at + 1)
    match rng.randrange(7):
        case 0:
            return attrs.evolve(head, pending=rng.choice([b"", b"12345678", b"12345678abcdefgh"]))
        case 1:
            return attrs.evolve(head, due=rng.choice([0.0, -1.0, 5.0, 6.0]))
        case 2:
            return attrs.evolve(head, suspended=not head.suspended)
        case 3:
            return attrs.evolve(head, closed=not head.closed)
    return head


def row_of(head):
    return Row(head.series, head.records, 1, b"body", 7)


@pytest.mark.parametrize("seed", range(5))
def test_heads_are_restored_as_written(file, seed):
    """Random steps of one or two sessions are written alone and in groups, with rollbacks and erasures."""
    rng = random.Random(seed)
    heads = {name: head_of(name) for name in ("s", "t")}
    for _ in range(300):
        name = rng.choice("ssst")
        before, head = heads[name], changed(rng, heads[name])
        match rng.randrange(12):
            case 0:
                heads = {each: changed(rng, heads[each]) for each in heads}
                file.write([row_of(each) for each in heads.values()], list(heads.values()))
            case 1:
                file.write([row_of(head)], [head])
                file.roll_back(SessionKey("a", name), before if before.records else None)
            case 2:
                file.erase(SessionKey("a", name))
                heads[name] = head_of(name)
            case _:
                file.write([row_of(head)], [head])
                heads[name] = head
        written = {each.key: each for each in heads.values() if each.records}
        assert file.read_heads([SessionKey("a", "s"), SessionKey("a", "t")]) == written
    assert file.structure_problem() is None
    assert set(file.list_unfinished("a")) == {
        each.session_id for each in written.values() if each.pending and not each.suspended
    }


def test_append_rewrites_no_index(file):
    """Apart from its own row, an append changes the pages of four tables and indexes, not five."""
    head = attrs.evolve(head_of("s"), pending=b"12345678")
    sizes = []
    file._db.set_wal_hook(lambda _, __, pages: sizes.append(pages) or 0)
    for number in range(4):
        head = attrs.evolve(head, records=number + 1, pending=b"abcdefgh" if number == 2 else head.pending)
        file.write([row_of(head)], [head])
    assert [after - before for before, after in itertools.pairwise(sizes)] == [4, 5, 4]
