"""The store: a state that only actions change."""

import pytest

from actgent.errors import UsageError
from actgent.journal.store import Store


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
def test_an_action_gives_a_pair_or_several_or_nothing(returned, state):
    """Later pairs of one key win."""
    store = Store()
    store.dispatch(lambda _: returned)
    assert dict(store) == state


@pytest.mark.parametrize(
    "returned",
    [{"a": 1}, "ab", 5, ("a",), ("a", 1, 2), (1, "a"), [("a", 1), ("b",)], [("a", 1), None], {("a", 1)}],
)
def test_whatever_else_it_gives_changes_nothing(returned):
    """The text says what an action gives."""
    store = Store({"a": 0})
    with pytest.raises(UsageError, match="an action returns"):
        store.dispatch(lambda _: returned)
    assert dict(store) == {"a": 0}


def test_an_action_that_raises_changes_nothing():
    """Its exception comes out."""
    store = Store({"a": 0})
    with pytest.raises(ZeroDivisionError):
        store.dispatch(lambda state: ("a", 1 // state["a"]))
    assert dict(store) == {"a": 0}


def test_an_action_sees_the_state_and_cannot_change_it():
    """It gets a read-only mapping of that moment."""
    store = Store({"a": 0})
    with pytest.raises(AttributeError):
        store.dispatch(lambda state: state.__setitem__("a", 1))
    store.dispatch(lambda state: ("a", state["a"] + 1))
    assert store["a"] == 1


def test_a_former_state_stays_good():
    """A snapshot is not changed by what comes later."""
    store = Store({"a": 0})
    before = store.snapshot
    store.dispatch(lambda _: ("a", 1))
    assert (before["a"], store["a"]) == (0, 1)


def test_a_store_is_a_mapping():
    """Length, iteration, membership, equality, `get`."""
    store = Store({"a": 1, "b": 2})
    assert len(store) == 2
    assert list(store) == ["a", "b"]
    assert "a" in store
    assert store.get("z", 9) == 9
    assert store == {"a": 1, "b": 2}
    with pytest.raises(KeyError):
        store["z"]
