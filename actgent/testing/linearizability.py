"""Search for a linearization of a log of clients' calls: an order of the calls in which each result is right.

`find_contradictions` needs no search, because a journal states the order. A system without a journal has only the log of its
clients. The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects" (1993), with remembered states as in
Lowe, "Testing for Linearizability" (2017). Operations with different keys are searched separately.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import attrs

from actgent.errors import ConfigurationError

StateT = TypeVar("StateT", bound=Hashable)
MAX_STATES = 1_000_000
"""Default maximum number of states that a search visits for one key."""


@attrs.frozen(kw_only=True)
class ClientOperation:
    """A call of a client, with its result and its times."""

    action: Any
    """Requested action, for example `("append", "hello")`."""
    result: Any = None
    """Result of the call. It is unknown for a call that did not return."""
    began: float
    """Time at which the call began, in any unit of the clients' clock."""
    ended: float = math.inf
    """Time at which the call returned, on the same clock. Infinite if it did not return: it may or may not have taken effect."""
    key: Hashable = None
    """Key of the object on which the call acts, for example a session id. Operations on different objects are independent."""

    def __attrs_post_init__(self) -> None:
        if not self.began <= self.ended:
            raise ConfigurationError(
                f"the operation {self.action!r} ended at {self.ended}, before it began at {self.began}"
            )

    @property
    def has_returned(self) -> bool:
        return self.ended < math.inf


@attrs.frozen
class NotLinearizable:
    """Result of a search: the operations on one object have no linearization."""

    key: Hashable
    """Key of the object on which the operations act."""
    longest: tuple[ClientOperation, ...]
    """Longest valid order of operations that the search has found. No other operation can follow with its actual result."""
    rest: tuple[ClientOperation, ...]
    """Returned operations that are not in `longest`."""


def find_linearization(
    operations: Iterable[ClientOperation],
    initial: StateT,
    step: Callable[[StateT, ClientOperation], StateT | None],
    *,
    max_states: int = MAX_STATES,
) -> dict[Hashable, tuple[ClientOperation, ...]] | NotLinearizable:
    """Find an order of the operations of each key in which each result is right.

    Return the orders by key, or a `NotLinearizable` for the first key without such an order.

    If an operation ended before another one began, it comes first in the order.

    Args:
        operations: All operations, in any order.
        initial: State of each object before its first operation. States are hashable.
        step: Function that returns the state after an operation, or None if its result is wrong in this state. It accepts any
            result of an operation that did not return.
        max_states: Maximum number of states to visit for one key. The search is exponential in the number of concurrent calls.

    Raises:
        ConfigurationError: The search has visited `max_states` states without a result.
    """
    by_key = dict[Hashable, list[ClientOperation]]()
    for each in operations:
        by_key.setdefault(each.key, []).append(each)
    found = dict[Hashable, tuple[ClientOperation, ...]]()
    for key, own in by_key.items():
        own.sort(key=lambda each: each.began)
        order, is_complete = _search(own, initial, step, max_states)
        if not is_complete:
            rest = tuple(each for each in own if each.has_returned and not any(each is one for one in order))
            return NotLinearizable(key, order, rest)
        found[key] = order
    return found


def _search(
    operations: Sequence[ClientOperation],
    initial: StateT,
    step: Callable[[StateT, ClientOperation], StateT | None],
    max_states: int,
) -> tuple[tuple[ClientOperation, ...], bool]:
    """Search for an order of the operations of one object, which are sorted by their beginning.

    Return the longest order that was found, and True if it contains all operations that have returned.
    """
    needed = sum(1 << n for n, each in enumerate(operations) if each.has_returned)
    path, longest = list[int](), list[int]()
    seen = {(0, initial)}
    branches = [_next_states(operations, 0, initial, step)]
    done = 0
    while done & needed != needed:
        for number, state in branches[-1]:
            if (done | 1 << number, state) not in seen:
                break
        else:
            branches.pop()
            if not branches:
                return tuple(operations[n] for n in longest), False
            done ^= 1 << path.pop()
            continue
        done |= 1 << number
        seen.add((done, state))
        if len(seen) > max_states:
            raise ConfigurationError(
                f"the search stopped after {max_states:,} states without a result for {len(operations)} operations: "
                "pass a larger max_states=, a shorter log, or one with fewer concurrent calls"
            )
        path.append(number)
        if len(path) > len(longest):
            longest = path[:]
        branches.append(_next_states(operations, done, state, step))
    return tuple(operations[n] for n in path), True


def _next_states(
    operations: Sequence[ClientOperation],
    done: int,
    state: StateT,
    step: Callable[[StateT, ClientOperation], StateT | None],
) -> Iterator[tuple[int, StateT]]:
    """Yield each operation that may be next in the order, as its number and the state after it.

    `done` is the bit set of the operations before.

    An operation may be next if it began before each other one ended.
    """
    left = [n for n in range(len(operations)) if not done >> n & 1]
    first_end = min((operations[n].ended for n in left), default=math.inf)
    for number in left:
        if operations[number].began > first_end:
            return  # and so did all later ones
        if (following := step(state, operations[number])) is not None:
            yield number, following


def message_log(state: tuple[Any, ...], operation: ClientOperation) -> tuple[Any, ...] | None:
    """Return the messages of a conversation after an operation, or None if its result is wrong: a `step` of `find_linearization`.

    The actions are `("append", message)` and `("read",)`, whose result is the list of all messages so far.

    Raises:
        ConfigurationError: The operation has another action.
    """
    match operation.action:
        case ("append", message):
            return (*state, message)
        case ("read",):
            is_right = not operation.has_returned or tuple(operation.result) == state
            return state if is_right else None
    raise ConfigurationError(
        f"the action of an operation must be ('append', message) or ('read',), not {operation.action!r}"
    )
