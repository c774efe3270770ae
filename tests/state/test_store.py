"""The store: a state that only actions change."""

import datetime as dt
import threading

import attrs
import pytest
import trio
from hypothesis import given, strategies as st

from actgent.errors import NotSerializable, UsageError
from actgent.journal.record_types import WIRE, Record, StateChangeRecord
from actgent.state.reducers import REDUCERS, add, append, extend, merge
from actgent.state.session_state import Store


@pytest.mark.parametrize(
    ("returned", "state"),
    [
        (("a", 1), {"a": 1}),
        (("a", None), {"a": None}),
        (("a", ("b", "c")), {"a": ("b", "c")}),
        ([("a", 1), ("b", 2)], {"a": 1, "b": 2}),
        ((("a", 1), ("b", 2)), {"a": 1, "b": 2}),
        ([("a", 1), ("a", 2)], {"a": 2}),
        ([("a", 1)], {"a": 1}),
        ([], {}),
        ((), {}),
        (None, {}),
    ],
)
def test_action_returns_one_pair_several_or_none(returned, state):
    """Later pairs of one key win."""
    store = Store()
    store.dispatch(lambda _: returned)
    assert dict(store) == state


@pytest.mark.parametrize(
    "returned",
    [{"a": 1}, "ab", 5, ("a",), ("a", 1, 2), (1, "a"), [("a", 1), ("b",)], [("a", 1), None], {("a", 1)}],
)
def test_other_action_results_change_no_state(returned):
    """The error describes the results that an action may return."""
    store = Store({"a": 0})
    with pytest.raises(UsageError, match="an action must return"):
        store.dispatch(lambda _: returned)
    assert dict(store) == {"a": 0}


def test_raising_action_changes_no_state():
    """The action's exception is raised unchanged."""
    store = Store({"a": 0})
    with pytest.raises(ZeroDivisionError):
        store.dispatch(lambda state: ("a", 1 // state["a"]))
    assert dict(store) == {"a": 0}


def test_action_cannot_modify_the_state_it_reads():
    """The action gets a read-only mapping of the current state."""
    store = Store({"a": 0})
    with pytest.raises(AttributeError):
        store.dispatch(lambda state: state.__setitem__("a", 1))
    store.dispatch(lambda state: ("a", state["a"] + 1))
    assert store["a"] == 1


def test_earlier_state_stays_valid():
    """Later changes do not modify a snapshot."""
    store = Store({"a": 0})
    before = store.snapshot
    store.dispatch(lambda _: ("a", 1))
    assert (before["a"], store["a"]) == (0, 1)


def test_a_store_is_a_mapping():
    """Length, iteration, membership, equality and `get` work."""
    store = Store({"a": 1, "b": 2})
    assert len(store) == 2
    assert list(store) == ["a", "b"]
    assert "a" in store
    assert store.get("z", 9) == 9
    assert store == {"a": 1, "b": 2}
    with pytest.raises(KeyError):
        store["z"]


# --- copies of values ------------------------------------------------------


def test_modifying_a_read_value_has_no_effect():
    """Lists and mappings are deep copies, from the store, snapshots, replays and the history."""
    store = Store({"plan": {"steps": ["a"]}})
    store.dispatch(("tags", ["x"]))
    for state in (store, store.snapshot, store.replay(1), store.history[0].changes):
        state["tags"].append("y")
    store["plan"]["steps"].append("b")
    dict(store)["plan"]["steps"].clear()
    assert store == store.replay(1) == {"plan": {"steps": ["a"]}, "tags": ["x"]}


def test_modifying_a_passed_value_has_no_effect():
    """The store copies its initial state and the results of actions."""
    initial, tags = {"a": [1]}, ["x"]
    store = Store(initial)
    store.dispatch(lambda _: ("tags", tags))
    initial["a"].append(2)
    tags.append("y")
    assert store == {"a": [1], "tags": ["x"]}


def test_action_may_modify_its_copies():
    """If the action then raises, the state is unchanged."""
    store = Store({"a": [1]})

    def careless(state):
        state["a"].append(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.dispatch(careless)
    assert store == {"a": [1]}


def test_values_keep_their_types():
    """Tuples stay tuples and sets stay sets. Other mappings become dicts."""
    values = {"t": (1, [2]), "s": {1, 2}, "d": dt.date(2026, 1, 1), "m": Store({"x": [1]})}
    store = Store(values)
    assert dict(store) == {**values, "m": {"x": [1]}}
    assert store["s"] is not values["s"]


@pytest.mark.parametrize("what", ["a lock", "itself"])
def test_uncopyable_value_is_rejected(what):
    """The error names the key, and the state is unchanged."""
    value: list = []
    value.append(threading.Lock() if what == "a lock" else value)
    store = Store()
    with pytest.raises(NotSerializable, match="thing cannot be serialized"):
        store.dispatch(("thing", value))
    assert len(store) == 0


# --- actions -----------------------------------------------------------------------------


def test_change_needs_no_function():
    """The spec's case 1: one pair, several or none. A malformed change has no effect."""
    store = Store()
    store.dispatch(("k", 1))
    store.dispatch(None)
    store.dispatch([("a", 1), ("b", 2)])
    for malformed in (5, {"k": 2}, [("k",)]):
        with pytest.raises(UsageError, match="an action must return"):
            store.dispatch(malformed)
    assert store == {"k": 1, "a": 1, "b": 2}


def test_actions_by_name_take_arguments():
    """The error for an unknown name lists the known actions."""
    store = Store({"n": 1}, actions={"grow": lambda state, by: ("n", state["n"] + by)})
    store.add_action("reset", lambda _: ("n", 0))
    store.dispatch("grow", 4)
    assert store["n"] == 5
    with pytest.raises(UsageError, match=r"'shrink' \(known: grow, reset\)"):
        store.dispatch("shrink")
    store.dispatch("reset")
    assert [step.action for step in store.history] == ["grow", "shrink", "reset"]


def test_async_action_is_rejected():
    """An async action returns no pair. Its coroutine is closed."""

    async def action(state):
        await trio.lowlevel.checkpoint()
        return "a", 1

    with pytest.raises(UsageError, match="coroutine"):
        Store().dispatch(action)


def test_action_may_not_dispatch():
    """A reducer may not dispatch either: its change would persist although the outer action fails."""
    store = Store(reducers={"k": lambda _, new: store.dispatch(("a", new))})
    for action in (
        lambda _: store.dispatch(lambda _: ("a", 1)),
        lambda _: store.dispatch(("a", 1)),
        lambda _: store.rollback(0),
        ("k", 1),
    ):
        with pytest.raises(UsageError, match="must not call dispatch"):
            store.dispatch(action)
    assert len(store) == 0
    store.dispatch(("a", 2))
    assert store["a"] == 2


def test_failed_action_is_recorded_without_a_change():
    """The record has no state number and is skipped by replays."""
    written: list = []
    store = Store({"a": 0}, write=written.append)
    store.dispatch(("a", 1))

    def divide(state):
        return "a", 1 // 0

    with pytest.raises(ZeroDivisionError):
        store.dispatch(divide)
    store.dispatch(("a", 2))
    assert [(step.number, step.action, bool(step.error)) for step in store.history] == [
        (1, "", False),
        (1, "divide", True),
        (2, "", False),
    ]
    assert store.history[1].error == "ZeroDivisionError: integer division or modulo by zero"
    assert [store.replay(n)["a"] for n in range(3)] == [0, 1, 2]
    assert len(written) == 3


def test_change_rejected_by_the_journal_is_undone():
    """The journal's error is raised, even if the journal also rejects the failure record."""

    def full(_):
        raise OSError("no space")

    store = Store({"a": 0}, write=full)
    with pytest.raises(OSError, match="no space") as caught:
        store.dispatch(("a", 1))
    assert "could not record" in caught.value.__notes__[0]
    assert (dict(store), store.number) == ({"a": 0}, 0)


def test_once_dispatches_once():
    """A change with an id is made once, for any action. Without an id it is made each time."""
    store = Store(reducers={"n": add})
    for once in ("x", "x", "", "", "y"):
        store.dispatch(("n", 1), once=once)
    assert store["n"] == 4


def test_failed_once_id_may_be_retried():
    """Only a successful change uses up its id."""
    store = Store({"n": 0})
    with pytest.raises(ZeroDivisionError):
        store.dispatch(lambda _: ("n", 1 // 0), once="x")
    store.dispatch(("n", 1), once="x")
    assert store["n"] == 1


# --- reducers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reducer", "given", "state"),
    [
        (append, [1, [2]], [1, [2]]),
        (extend, [[1], [2, 3]], [1, 2, 3]),
        (merge, [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
        (add, [1, 2, 4], 7),
        (add, ["a", "b"], "ab"),
        (lambda old, new: max(old or 0, new), [3, 9, 4], 9),
    ],
)
def test_reducer_combines_old_and_new_values(reducer, given, state):
    """The reducer is applied to each pair, in separate actions and in one action."""
    one_by_one, at_once = Store(reducers={"k": reducer}), Store()
    at_once.add_reducer("k", reducer)
    for value in given:
        one_by_one.dispatch(("k", value))
    at_once.dispatch([("k", value) for value in given])
    assert one_by_one["k"] == at_once["k"] == state
    assert (one_by_one.number, at_once.number) == (len(given), 1)


@pytest.mark.parametrize(
    ("reducer", "given"), [(append, 1), (extend, [1]), (extend, 2), (merge, {}), (merge, 1), (add, [1])]
)
def test_failing_reducer_changes_no_state(reducer, given):
    """The other pairs of the action are not applied either."""
    store = Store({"k": "text"}, reducers={"k": reducer})
    with pytest.raises((UsageError, TypeError)):
        store.dispatch([("other", 1), ("k", given)])
    assert store == {"k": "text"}
    assert store.history[0].error


def test_reducer_may_modify_its_arguments():
    """The reducer gets copies, so earlier states are unchanged."""

    def careless(old, new):
        old.append(new)
        return old

    store = Store({"k": []}, reducers={"k": careless})
    store.dispatch(("k", 1))
    store.dispatch(("k", 2))
    assert [store.replay(n)["k"] for n in range(3)] == [[], [1], [1, 2]]


def test_reducer_that_is_not_callable_is_rejected():
    """A reducer or an action that is not callable is rejected."""
    with pytest.raises(UsageError, match="the reducer of 'k'"):
        Store(reducers={"k": "append"})
    with pytest.raises(UsageError, match="the action 'go'"):
        Store(actions={"go": None})


def test_a_reducer_may_be_an_object():
    """A callable object works as a reducer, even without a hash."""

    @attrs.define
    class Newest:
        keep: int

        def __call__(self, old, new):
            return [*(old or []), new][-self.keep :]

    store = Store(reducers={"k": Newest(2)})
    for value in (1, 2, 3):
        store.dispatch(("k", value))
    assert store["k"] == [2, 3]


async def test_parallel_updates_are_all_applied():
    """Tasks and threads update one key with a reducer and a separate key each."""
    store = Store(reducers={"results": append, "count": add})

    def work(number):
        store.dispatch([("results", number), ("count", 1), (f"own {number}", True)])

    async def task(number):
        await trio.lowlevel.checkpoint()
        work(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(task, number)
            nursery.start_soon(trio.to_thread.run_sync, work, 20 + number)
    assert sorted(store["results"]) == list(range(40))
    assert (store["count"], store.number, len(store)) == (40, 40, 42)


async def test_rollback_from_a_thread_runs_in_the_event_loop():
    """The rollback runs in the event loop's thread, like every state change."""
    store = Store()
    store.dispatch(("a", 1))
    fork = await trio.to_thread.run_sync(store.fork)
    await trio.to_thread.run_sync(store.rollback, 0)
    fork.dispatch(("a", 2))
    assert (dict(store), dict(fork)) == ({}, {"a": 2})


# --- subscribers -------------------------------------------------------------------------


def test_subscribers_receive_changes_until_unsubscribe():
    """Subscribers receive changes and rollbacks, but no failed or empty actions."""
    store, seen = Store({"a": 0}), []
    unsubscribe = store.subscribe(lambda state: seen.append(state["a"]))
    store.dispatch(("a", 1))
    store.dispatch(None)
    with pytest.raises(UsageError):
        store.dispatch(5)
    store.rollback(0)
    unsubscribe()
    unsubscribe()
    store.dispatch(("a", 2))
    assert seen == [1, 0]


def test_raising_subscriber_does_not_affect_others(caplog):
    """The exception is logged, other subscribers are called, and the change stays."""
    store, seen = Store(), []
    store.subscribe(lambda state: state["missing"])
    store.subscribe(lambda state: seen.append(dict(state)))
    store.dispatch(("a", 1))
    assert seen == [{"a": 1}]
    assert "a subscriber of the state failed" in caplog.text


def test_a_subscriber_may_dispatch():
    """No subscriber receives an older state after a newer one."""
    store, seen = Store(), []
    store.subscribe(lambda state: store.dispatch(("b", state["a"])) if "b" not in state else None)
    store.subscribe(lambda state: seen.append(dict(state)))
    store.dispatch(("a", 1))
    assert seen[-1] == store == {"a": 1, "b": 1}


def test_endless_subscriber_recursion_is_an_error():
    """The caller of `dispatch` gets the RecursionError."""
    store = Store(reducers={"a": add})
    store.subscribe(lambda _: store.dispatch(("a", 1)))
    with pytest.raises(RecursionError):
        store.dispatch(("a", 1))


# --- history --------------------------------------------------------------------------------


def three() -> Store:
    store = Store({"k": 0})
    for number in (1, 2, 3):
        store.dispatch(("k", number))
    return store


def test_replay_rollback_and_a_new_branch():
    """The spec's case 2."""
    store = three()
    second = store.replay(2)
    assert second == {"k": 2}
    before = store.snapshot
    store.rollback(1)
    assert (dict(store), store.number) == ({"k": 1}, 1)
    store.dispatch(("k", 9))
    assert [dict(store.replay(n)) for n in store.known] == [{"k": 0}, {"k": 1}, {"k": 9}]
    assert (second["k"], before["k"]) == (2, 3)


@pytest.mark.parametrize("number", [-1, 4, 1.0, True, None, "1"])
def test_unknown_state_number_is_an_error(number):
    """The error lists the available numbers."""
    store = three()
    calls = [store.replay, store.rollback] + ([store.fork] if number is not None else [])
    for call in calls:
        with pytest.raises(UsageError, match="0 to 3"):
            call(number)
    assert store == {"k": 3}


def test_fork_is_independent():
    """A fork from any number has the earlier history, the reducers and the actions."""
    written: list = []
    store = Store(reducers={"n": add}, actions={"one": lambda _: ("n", 1)}, write=written.append)
    store.subscribe(lambda _: written.append("told"))
    for _ in range(3):
        store.dispatch("one")
    del written[:]
    fork = store.fork(1)
    fork.dispatch("one")
    assert (fork["n"], fork.number, store["n"], written) == (2, 2, 3, [])
    assert [dict(fork.replay(n)) for n in fork.known] == [{}, {"n": 1}, {"n": 2}]
    assert dict(store.fork()) == {"n": 3}


def test_the_history_is_bounded():
    """The oldest states are dropped. The remaining states are correct."""
    store = Store({"k": 0}, history=3)
    for number in range(1, 11):
        store.dispatch(("k", number))
    assert (list(store.known), len(store.history)) == ([7, 8, 9, 10], 3)
    assert [store.replay(n)["k"] for n in store.known] == [7, 8, 9, 10]
    with pytest.raises(UsageError, match="7 to 10"):
        store.rollback(6)


# --- the journal -------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 2**70)),
        st.tuples(st.just("append"), st.lists(st.integers(), max_size=2)),
        st.tuples(st.just("append twice"), st.integers()),
        st.tuples(st.just("own"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.text(max_size=5)),
        st.tuples(st.just("once"), st.integers(0, 3)),
        st.tuples(st.just("back"), st.integers(0, 5)),
    ),
    max_size=25,
)


def operate(store, operation, value):
    def fail(_):
        raise LookupError(value)

    match operation:
        case "set":
            store.dispatch([("k", value), ("t", (value, [value]))])
        case "append":
            store.dispatch(("list", value))
        case "append twice":
            store.dispatch([("list", value), ("list", value)])
        case "own":
            store.dispatch(("max", value))
        case "fail":
            with pytest.raises(LookupError):
                store.dispatch(fail)
        case "once":
            store.dispatch(("list", value), once=str(value))
        case "back":
            store.rollback(max(store.known.start, store.number - value))


@given(OPERATIONS)
def test_a_store_is_restored_exactly(operations):
    """From bytes and without reducers: state, number, history, earlier states and used ids."""
    written: list = []
    reducers = {"list": append, "max": lambda old, new: max(old or 0, new)}
    store = Store(reducers=reducers, write=written.append, history=8)
    for operation, value in operations:
        operate(store, operation, value)
    restored = Store(history=8)
    for record in WIRE.decode(WIRE.encode(written, Record), Record):
        restored.restore(record)
    assert dict(restored) == dict(store)
    assert (restored.number, restored.known, restored.history) == (store.number, store.known, store.history)
    assert [restored.replay(n) for n in store.known] == [store.replay(n) for n in store.known]
    assert restored._once == store._once


def test_growing_list_is_journaled_in_linear_size():
    """An append stores the new value, not the list."""
    written: list = []
    store = Store(reducers={"results": append}, write=written.append)
    for number in range(1000):
        store.dispatch(("results", f"result {number}"))
    assert len(WIRE.encode(written, Record)) < 100_000


@pytest.mark.parametrize("changes", [2_000, 10_000])
@pytest.mark.parametrize(
    ("reducer", "given"),
    [("append", lambda n: n), ("extend", lambda n: [n]), ("merge", lambda n: {f"key {n}": n})],
)
def test_grown_list_is_restored_in_linear_time(monkeypatch, changes, reducer, given):
    """The list is copied once for each of its snapshots and once for the oldest state."""
    copied = []

    def counting(old, new):
        copied.append(len(old or ()))
        return pure(old, new)

    pure = REDUCERS[reducer]
    monkeypatch.setitem(REDUCERS, reducer, counting)
    store, snapshots = Store({"k": given(0)} if reducer != "append" else {"k": [0]}), {}
    for number in range(1, changes + 1):
        if number % (changes // 4) == 1:
            snapshots[number] = store.snapshot
        store.restore(StateChangeRecord(changes={"k": given(number)}, reduced={"k": reducer}))
    assert (len(copied), len(snapshots)) == (5, 4)
    assert {length: len(snapshot["k"]) for length, snapshot in snapshots.items()} == {n: n for n in snapshots}
    copied.clear()
    assert [len(store.replay(n)["k"]) for n in (store.known.start, store.number - 1)] == [
        changes - 999,
        changes,
    ]
    assert len(copied) == 1
    store.dispatch(lambda state: ("k", len(state["k"])))
    assert len(store.replay(changes)["k"]) == changes + 1
