"""Differences of plain data, and state changes that are stored as differences."""

import copy
from functools import partial

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.group_commit.row_format import decompress, stored_records
from actgent.journal.record_types import StateChangeRecord
from actgent.journal.session_state_patches import MAX_PATCHES, StatePatcher
from actgent.state.reducers import append
from actgent.support.structural_diff import apply_difference, difference
from actgent.support.tagged_codec import pack_plain

LEAVES = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2), inner, max_size=6)
        | st.dictionaries(st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=25,
)


@st.composite
def edited(draw, value, *, depth=0):
    """Draw a value that differs from the given value in few places."""
    if depth <= 3 and value and type(value) in (dict, list) and draw(st.integers(0, 4)):
        return draw((edited_mapping if type(value) is dict else edited_list)(value, depth=depth))
    return draw(VALUES)


@st.composite
def edited_mapping(draw, value, *, depth):
    made, key = dict(value), draw(st.sampled_from(list(value)))
    match draw(st.sampled_from(["in", "in", "delete", "add", "move"])):
        case "in":
            made[key] = draw(edited(value[key], depth=depth + 1))
        case "delete":
            del made[key]
        case "add":
            made[draw(st.text("abcd", max_size=3))] = draw(VALUES)
        case "move":
            made[key] = made.pop(key)
    return made


@st.composite
def edited_list(draw, value, *, depth):
    made, place = list(value), draw(st.integers(0, len(value) - 1))
    match draw(st.sampled_from(["in", "in", "cut", "insert", "turn"])):
        case "in":
            made[place] = draw(edited(value[place], depth=depth + 1))
        case "cut":
            del made[place : place + draw(st.integers(1, 3))]
        case "insert":
            made[place:place] = draw(st.lists(VALUES, min_size=1, max_size=2))
        case "turn":
            made.reverse()
    return made


PAIRS = VALUES.flatmap(lambda old: st.tuples(st.just(old), edited(old)))


@given(PAIRS)
def test_difference_yields_exactly_the_new_value(pair):
    """Key order and number types are preserved, and the old value is not modified."""
    old, new = pair
    before = copy.deepcopy(old)
    made = apply_difference(old, difference(old, new))
    assert pack_plain(made) == pack_plain(new)
    assert pack_plain(old) == pack_plain(before)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": True}, [[["a"], True]]),
        ({"a": 1}, {"a": 1.0}, [[["a"], 1.0]]),
        ([1], (1,), [[[], (1,)]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [[[], {"b": 2, "a": 1}]]),
        ({"a": 1, "b": 2}, {"b": 2}, [[["a"]]]),
        ({"a": {"b": [1, 2, 3]}}, {"a": {"b": [1, 2, 3, 4]}}, [[["a", "b"], 3, 0, [4]]]),
        ([1, 2, 3], [2, 3], [[[], 0, 1, []]]),
        ({"a": [{"n": 1}, {"n": 2}]}, {"a": [{"n": 1}, {"n": 3}]}, [[["a", 1, "n"], 3]]),
        ({"a": 1}, {"a": 1}, []),
    ],
    ids=lambda value: repr(value).replace(" ", ""),
)
def test_operations_have_the_stored_format(old, new, expected):
    """The operations have the stored format, which journals contain, so it must not change."""
    assert difference(old, new) == expected


@pytest.mark.parametrize("patch", [[[["b", "c"], 1]], [[["a"], 0, 1, []]], [[["a", "b"], 1]], [[["b"]]]])
def test_difference_of_another_value_is_rejected(patch):
    """A journal with such a difference is damaged."""
    with pytest.raises(LookupError):
        apply_difference({"a": 1}, patch)


def test_a_chain_of_differences_is_bounded():
    """A chain has a maximum length, and its bytes are at most the size of the value."""
    patcher, value, written = StatePatcher(), {"n": 0, "text": "x" * 5000}, []
    for number in range(MAX_PATCHES + 2):
        new = {**value, "n": number}
        record = patcher.patch(StateChangeRecord(changes={"k": new}), {"k": value})
        patcher.note(record)
        written.append(bool(record.patches))
        value = new
    assert [index for index, is_patch in enumerate(written) if not is_patch] == [0, MAX_PATCHES + 1]
    patcher, value, sizes = StatePatcher(), {str(n): "y" * 20 for n in range(20)}, []
    for number in range(60):
        new = {**value, str(number % 20): f"{number:020}"}
        record = patcher.patch(StateChangeRecord(changes={"k": new}), {"k": value})
        patcher.note(record)
        sizes.append(len(pack_plain(record.patches["k"])) if record.patches else 0)
        value = new
    wholes = [index for index, size in enumerate(sizes) if not size]
    assert len(wholes) > 1
    assert sum(sizes[: wholes[1]]) <= len(pack_plain(value))


def test_unwritten_change_is_not_a_base_for_differences():
    """If a change was not written, the next change stores the complete value."""
    patcher, value = StatePatcher(), {"text": "x" * 500}
    patcher.patch(StateChangeRecord(changes={"k": value}), {})
    assert not patcher.patch(StateChangeRecord(changes={"k": {**value, "n": 1}}), {"k": value}).patches


# --- in a journal --------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
LARGE = st.dictionaries(st.text("abc", min_size=1, max_size=2), VALUES, max_size=6).map(
    lambda value: {"filler": "x" * 200, **value}
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "edit", "edit", "edit", "append", "rollback"]), KEYS, st.data()),
    min_size=3,
    max_size=25,
)


async def _live(steps, url, *, restarts):
    """Change a session's state step by step and restart in between. Return the states by record count."""
    states, records = {}, ()
    for begin in range(0, len(steps), restarts):
        async with open_runtime(journal=url) as runtime:
            agent = BareAgent("clerk", llm=ScriptedLLM([]), reducers={"grown": append})
            await runtime.start(agent)
            session = await agent.ensure_session("ada", "s")
            if states:
                assert pack_plain(dict(session.state)) == pack_plain(states[max(states)])
            for kind, key, data in steps[begin : begin + restarts]:
                _step(session.state, kind, key, data)
                await session._here.log.flush()
                head = await runtime.journal.head("clerk", "s")
                states[head.records] = dict(session.state)
            records = await runtime.journal.load("s", agent="clerk")
            await _check_pages(runtime.journal, records)
            for number, state in states.items():
                found = await runtime.rebuild("s", agent="clerk", to=number)
                assert pack_plain(dict(found.state)) == pack_plain(state)
    return states


def _step(state, kind, key, data):
    match kind:
        case "set":
            state.dispatch((key, data.draw(LARGE)))
        case "edit":
            state.dispatch((key, data.draw(edited(state.get(key)))))
        case "append":
            state.dispatch([("grown", 1), (key, data.draw(edited(state.get(key))))])
        case "rollback":
            state.rollback(data.draw(st.integers(state.known[0], state.number)))


async def _check_pages(journal, records):
    """Check that each record is the same for every start position of a reader."""
    for after in range(len(records)):
        (found,) = await journal.read("s", agent="clerk", after=after, limit=1)
        assert repr(found) == repr(records[after])
        assert not getattr(found, "patches", None)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.sampled_from([4, 100]))
def test_state_is_restored_after_each_record(tmp_path_factory, steps, restarts):
    """Values, order and types are restored from the beginning, in pages and across restarts."""
    url = f"sqlite:///{tmp_path_factory.mktemp('journal')}/agents.db"
    trio.run(partial(_live, steps, url, restarts=restarts))


async def test_journal_stores_differences(tmp_path):
    """A small change of a large value is stored as a difference. Feed and observers get complete values."""
    path = tmp_path / "agents.db"
    value = {"log": [], "filler": {str(n): "x" * 100 for n in range(100)}}
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.create_session("ada", session_id="s")
        async with session.follow(after=0) as follower, session.observe(after=0) as observer:
            for number in range(50):
                value = {**value, "log": [*value["log"], number]}
                session.state.dispatch(("db", value))
                while getattr(record := (await follower.receive()).record, "changes", None) is None:
                    pass
                assert (record.changes, record.patches) == ({"db": value}, {})
                assert (await observer.receive()).content == {"db": value}
        late = await session.observations(after=40, types=["STATE_UPDATE"])
        assert late[-1].content == {"db": value}
    connection = apsw.Connection(str(path))
    size = sum(len(decompress(body)) for (body,) in connection.execute("SELECT body FROM steps"))
    connection.close()
    assert size < 2 * len(pack_plain(value))


async def test_redacted_journals_store_redacted_differences(tmp_path):
    """Text in differences is redacted. After a restart the state has the redacted text."""
    path = tmp_path / "agents.db"

    def redact(text):
        return text.replace("secret", "[cut]")

    state = {"filler": "x" * 500, "names": ["secret 0"]}
    async with open_runtime(journal=f"sqlite:///{path}", redact=redact) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.create_session("ada", session_id="s")
        for number in range(1, 4):
            session.state.dispatch(("db", state))
            state = {**state, "names": [*state["names"], f"secret {number}"]}
        session.state.dispatch(("db", state))
    connection = apsw.Connection(str(path))
    bodies = b"".join(decompress(body) for (body,) in connection.execute("SELECT body FROM steps"))
    connection.close()
    assert b"[cut]" in bodies
    assert b"secret" not in bodies
    async with open_runtime(journal=f"sqlite:///{path}", redact=redact) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.open_session("s")
        assert session.state["db"]["names"] == [f"[cut] {number}" for number in range(4)]


async def test_value_with_special_keys_or_large_integers_is_written_whole(tmp_path):
    """Values that differences cannot express are stored completely."""
    values = [{"x" * 200: 2**70}, {"x" * 200: 2**71}, {1: "x" * 200, 2: 3}, {1: "x" * 200, 2: 4}]
    async with open_runtime(journal=f"sqlite:///{tmp_path}/agents.db") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.create_session("ada", session_id="s")
        for value in values:
            session.state.dispatch(("k", value))
        await session._here.log.flush()
        records = await runtime.journal.load("s", agent="clerk")
    assert [record.changes["k"] for record in records if isinstance(record, StateChangeRecord)] == values


def test_records_without_differences_are_stored_as_they_are():
    """Such records are not copied."""
    records = (StateChangeRecord(changes={"a": 1}),)
    assert stored_records(records) is records


def test_value_with_many_differences_is_replaced():
    """A comparison would take longer than writing the value."""
    old = {str(number): [number] for number in range(500)}
    new = {key: [-value[0]] for key, value in old.items()}
    assert difference(old, new) == [[[], new]]
    assert len(difference(old, {**old, "7": [8]})) == 1
    assert apply_difference(old, difference(old, new, maximum=1000)) == new
