"""`find_linearization` returns an order of a client's calls in which each result is correct."""

import itertools
import math
import random

import pytest

from actgent.errors import ConfigurationError
from actgent.testing import ClientOperation, NotLinearizable, find_linearization, message_log


def append(message, began, ended=math.inf, key=None):
    return ClientOperation(action=("append", message), began=began, ended=ended, key=key)


def read(result, began, ended, key=None):
    return ClientOperation(action=("read",), result=result, began=began, ended=ended, key=key)


def register(state, operation):
    """Model of a variable: `("set", value)`, and `("get",)` with the value as result."""
    if operation.action[0] == "set":
        return operation.action[1]
    return state if not operation.has_returned or operation.result == state else None


def test_concurrent_calls_are_ordered_by_their_results():
    """The result of a read determines the order of two concurrent messages."""
    one, two = append("one", 0, 10), append("two", 0, 10)
    late = read(["two", "one"], 11, 12)
    assert find_linearization([one, late, two], (), message_log) == {None: (two, one, late)}


def test_call_without_return_may_have_taken_effect_or_not():
    """A later read may or may not contain a message whose call was cancelled."""
    lost = append("lost", 0)
    for seen in (["lost"], []):
        found = find_linearization([lost, read(seen, 5, 6)], (), message_log)
        assert not isinstance(found, NotLinearizable)
    back_again = [lost, read(["lost"], 5, 6), read([], 7, 8)]
    assert isinstance(find_linearization(back_again, (), message_log), NotLinearizable)


def test_lost_update_is_not_linearizable():
    """Two readers that see two messages in different orders contradict each other. The result names the contradicting calls."""
    calls = [append("one", 0, 10), append("two", 0, 10), read(["one"], 1, 2), read(["two"], 3, 4)]
    found = find_linearization(calls, (), message_log)
    assert isinstance(found, NotLinearizable)
    assert found.rest == (calls[3],)
    assert found.longest == (calls[0], calls[2], calls[1])


def test_stale_read_is_not_linearizable():
    """A read that begins after a write has returned must return the written value."""
    write = ClientOperation(action=("set", 1), began=0, ended=1)
    assert isinstance(
        find_linearization(
            [write, ClientOperation(action=("get",), result=0, began=2, ended=3)], 0, register
        ),
        NotLinearizable,
    )
    overlapping = ClientOperation(action=("get",), result=0, began=0.5, ended=3)
    assert find_linearization([write, overlapping], 0, register) == {None: (overlapping, write)}


def test_objects_are_searched_separately():
    """Each key has its own order. A contradiction names its key."""
    calls = [append(n, 0, 100, key=key) for key in "abcdefgh" for n in range(6)]
    found = find_linearization(
        [*calls, read([5, 4, 3, 2, 1, 0], 101, 102, "h")], (), message_log, max_states=3000
    )
    assert [operation.action[1] for operation in found["h"][:-1]] == [5, 4, 3, 2, 1, 0]
    wrong = find_linearization([*calls, read([], 101, 102, "h")], (), message_log)
    assert isinstance(wrong, NotLinearizable)
    assert wrong.key == "h"


def test_search_is_bounded():
    """Too many concurrent calls raise an error with the remedy."""
    calls = [*(append(n, 0, 100) for n in range(12)), read([], 101, 102)]
    with pytest.raises(ConfigurationError, match="after 1,000 states without a result"):
        find_linearization(calls, (), message_log, max_states=1000)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: append("one", 2, 1), "ended at 1, before it began at 2"),
        (
            lambda: find_linearization([ClientOperation(action=("pop",), began=0, ended=1)], (), message_log),
            "the action of an operation must be",
        ),
    ],
)
def test_invalid_operation_is_rejected(make, expected):
    """The error names the invalid value and the expected values."""
    with pytest.raises(ConfigurationError, match=expected):
        make()


def is_linearizable_by_all_permutations(operations, initial, step):
    """Try each order of each subset that contains all returned operations."""
    returned = [each for each in operations if each.has_returned]
    pending = [each for each in operations if not each.has_returned]
    for count in range(len(pending) + 1):
        for chosen in itertools.combinations(pending, count):
            for order in itertools.permutations([*returned, *chosen]):
                if any(b.ended < a.began for n, a in enumerate(order) for b in order[n + 1 :]):
                    continue
                state = initial
                for operation in order:
                    state = step(state, operation)
                    if state is None:
                        break
                else:
                    return True
    return False


def random_history(choices):
    operations = []
    for _ in range(choices.randint(1, 5)):
        began = choices.randint(0, 8)
        ended = math.inf if choices.random() < 0.15 else began + choices.randint(0, 4)
        action = ("set", choices.randint(1, 2)) if choices.random() < 0.5 else ("get",)
        operations.append(
            ClientOperation(action=action, result=choices.randint(0, 2), began=began, ended=ended)
        )
    return operations


def test_search_agrees_with_all_permutations():
    """For 3,000 random histories the search and a search over all permutations have the same result."""
    choices, counts = random.Random(7), {True: 0, False: 0}
    for _ in range(3000):
        history = random_history(choices)
        found = find_linearization(history, 0, register)
        expected = is_linearizable_by_all_permutations(history, 0, register)
        assert isinstance(found, NotLinearizable) is not expected, history
        counts[expected] += 1
        if expected:
            state = 0
            for operation in found[None]:
                state = register(state, operation)
                assert state is not None
            assert {id(each) for each in history if each.has_returned} <= {id(each) for each in found[None]}
    assert min(counts.values()) > 500, counts
