"""The store of a session's state, which changes only by actions.

An action is a function of the state that returns `(key, value)`, several such pairs, or None. If a key has a reducer, it
combines the new value with the old one; otherwise the new value replaces the old one. An action is atomic: if it raises,
the state is unchanged, and the history records the failure.

Changes are numbered from 1. The store keeps the newest `history` changes, and can recompute the state after each of them.

Values are copied when they are written and when they are read, so callers never share mutable values with the store.
A copy of a list or mapping takes time proportional to its size. Objects of other classes are deep-copied; a journal accepts only
plain data.
"""

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import trio

from actgent.errors import NotSerializable, UsageError
from actgent.errors.text_escaping import quoted
from actgent.journal.record_types import ActionFailureRecord, StateChangeRecord, StateRollbackRecord
from actgent.journal.session_state_patches import with_values
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import DISPATCH, hints_for_states
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error

from .reducers import GROW, REDUCERS, Reducer, reducer_name


class StateBuilder:
    """Mutable copy of a state, to which recorded changes are applied."""

    __slots__ = ("_own", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        """Current values; use `share` to get values that later changes do not affect."""
        self._own: set[str] = set()
        """Keys whose lists and mappings this builder created. Only these may be changed in place."""

    def share(self) -> Mapping[str, Any]:
        """Return the current values as a mapping that later calls of `apply` do not change."""
        self._own.clear()
        return dict(self.values)

    def apply(self, changed: StateChangeRecord) -> None:
        """Apply a recorded state change: new values replace the old ones, or are combined with them by the recorded reducers."""
        for key, value in changed.changes.items():
            name = changed.reduced.get(key, "")
            if name in GROW and key in self._own:
                GROW[name](self.values[key], value)
                continue
            self.values[key] = REDUCERS[name](self.values.get(key), value) if name else value
            if name in GROW:
                self._own.add(key)
            else:
                self._own.discard(key)


Pair = tuple[str, Any]
Action = Callable[..., Any]
StateCheck = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
"""Function of the changed values and the whole new state; an exception rejects the change."""
StateRecord = StateChangeRecord | ActionFailureRecord | StateRollbackRecord

MAX_HISTORY = 1000
"""Maximum number of changes and failed actions in the history. Rollbacks in journals depend on it: never decrease it."""
MAX_ERROR_CHARS = 500
_IMMUTABLE_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes, date, datetime})
_log = logger_of(__name__)
_set = object.__setattr__
_IS_NOT_PLAIN_FUNCTION = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


@attrs.frozen(kw_only=True, repr=False)
class Dispatched(FieldRepr):
    """A dispatched action in the history of a store."""

    number: int
    """Number of the state after the action, from 1; a failed action has the number of the unchanged state."""
    action: str
    """Name of the action; empty if pairs of key and value were dispatched directly."""
    changes: Mapping[str, Any]
    """Values that the action returned; for keys with a custom reducer, the reduced values."""
    error: str = ""
    """Class and text of the exception that the action raised; empty if the action succeeded."""


@attrs.frozen(kw_only=True, repr=False)
class SavedStore(FieldRepr):
    """Content of a store for a snapshot of its session."""

    base: Mapping[str, Any]
    """State before the oldest change in the history."""
    first: int
    """Number of changes that led to the state `base`."""
    history: tuple[StateChangeRecord | ActionFailureRecord, ...]
    """Changes and failed actions, oldest first."""
    once: tuple[str, ...]
    """Idempotency keys of completed calls of `dispatch`, oldest first."""


WITHHELD = "_withheld/"
"""Prefix of the keys of results that isolation withholds from the session's model."""
SHOWN = "_shown"
"""Key of the information about values of withheld results that the model has read.

The stored mapping has the last turn in which the model read such a value (`turn`), and the number of possible values by call id
(`spent`). It also has the untrusted sources of the values in this turn (`sources`) and in all turns (`ever`).
"""
_HIDDEN = ("_withheld", "_approved_values", "_nested/", "_result", "_moved/", SHOWN)
"""Prefixes of the keys under which actgent stores tool results, their sizes, and large values of the state."""


def _is_hidden(key: object) -> bool:
    return isinstance(key, str) and key.startswith(_HIDDEN)


class State(Mapping[str, Any]):
    """An immutable version of a session's state; values are copied when they are read.

    The mapping omits the tool results that actgent stores, because a tool or a prompt could show their text to a model.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if _is_hidden(key):
            raise KeyError(key)
        return value if type(value) in _IMMUTABLE_TYPES else _copy(value)

    @property
    def shared_values(self) -> Mapping[str, Any]:
        """All values of the state, including those that the mapping omits, without a copy. The caller must not change them."""
        return self._values

    def __contains__(self, key: object) -> bool:
        return key in self._values and not _is_hidden(key)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._values if not _is_hidden(key))

    def __len__(self) -> int:
        return len(self._values) - sum(map(_is_hidden, self._values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


@hints_for_states
class Store(State):
    """Store of a session's state: a read-only mapping that only the actions of `dispatch` change.

    Args:
        initial: Values of the state before the first change.
        reducers: Reducer of each key; see `actgent.state.reducers`.
        actions: Actions by name, for `dispatch("name")`.
        check: Called with the changed values and the whole new state before each change; an exception rejects the change.
        write: Called with the record of each change before it takes effect; an exception rejects the change.
        history: Maximum number of actions in the history, at least 1.
    """

    __slots__ = (
        "_actions",
        "_base",
        "_check",
        "_draft",
        "_first",
        "_history",
        "_is_acting",
        "_keep",
        "_number",
        "_once",
        "_reducers",
        "_subscribers",
        "_thread",
        "_write",
    )

    def __init__(
        self,
        initial: Mapping[str, Any] | None = None,
        *,
        reducers: Mapping[str, Reducer] | None = None,
        actions: Mapping[str, Action] | None = None,
        check: StateCheck | None = None,
        write: Callable[[StateRecord], object] | None = None,
        history: int = MAX_HISTORY,
    ) -> None:
        super().__init__({key: _copy_input(key, value) for key, value in (initial or {}).items()})
        self._reducers: dict[str, Reducer] = {}
        self._actions: dict[str, Action] = {}
        for key, reducer in (reducers or {}).items():
            self.add_reducer(key, reducer)
        for name, action in (actions or {}).items():
            self.add_action(name, action)
        self._check, self._write = check, write
        self._keep = max(1, history)
        self._draft: StateBuilder | None = None
        """Builder of the state while journal records are restored; None after a snapshot was taken."""
        self._base = StateBuilder(self._values)
        """State before the oldest change in the history."""
        self._first = 0
        """Number of the state `_base`."""
        self._number = 0
        self._history: list[StateChangeRecord | ActionFailureRecord] = []
        self._once: dict[str, None] | None = None
        self._subscribers: dict[object, Callable[[State], object]] | None = None
        self._is_acting = False
        self._thread = threading.get_ident()

    def __setattr__(self, name: str, value: object) -> None:
        try:
            _set(self, name, value)
        except AttributeError:
            raise AttributeError(f"{name!r} cannot be set: {DISPATCH}", name=name, obj=None) from None

    # --- reducers and actions -----------------------------------------------------------

    def add_reducer(self, key: str, reducer: Reducer) -> None:
        """Set the reducer of a key: `reducer(old, new)` returns the value to store.

        The reducer must be pure and sync. It does not affect changes that are already in the journal.
        """
        if not callable(reducer):
            raise UsageError(f"the reducer of {key!r} must be a function (old, new), not {reducer!r}")
        self._reducers[key] = reducer

    def has_reducer(self, key: str) -> bool:
        """Return True if the key has a reducer."""
        return key in self._reducers

    def add_action(self, name: str, action: Action) -> None:
        """Register an action: `dispatch(name, *args)` runs `action(state, *args)`."""
        if not callable(action):
            raise UsageError(f"the action {name!r} must be a function of the state, not {action!r}")
        self._actions[name] = action

    # --- change --------------------------------------------------------------------------

    def dispatch(
        self, action: Action | str | Pair | Sequence[Pair] | None, *args: Any, once: str = ""
    ) -> None:
        """Change the state by an action: all changes of the action, or none.

        The action is a function `(state, *args)`, or the name of a registered function. The function returns `(key, value)`, a list
        of such pairs, or None. The action can also be a pair or list: `dispatch(("language", "en"))`. A call from the worker thread
        of a tool runs in the thread of the event loop. `once` is an id: a second dispatch with this id changes nothing. A repeated
        tool passes its `idempotency_key`, a handler the id of its argument.

        Raises:
            UsageError: The name is not registered, or the function returned something else. The state is unchanged.
            InvalidState: A value does not fit the type of `state=`. The state is unchanged.
            NotSerializable: The journal cannot store a value. The state is unchanged.
            NotRunning: The session has a journal, and its agent has stopped. The state is unchanged.
        """
        if threading.get_ident() != self._thread:
            trio.from_thread.run_sync(self._dispatch, action, args, once)
        else:
            self._dispatch(action, args, once)

    def _dispatch(self, action: Any, args: tuple[Any, ...], once: str) -> None:
        if once and self._once is not None and once in self._once:
            return
        self._check_not_acting()
        name = _action_name(action)
        try:
            values, changed = self._decide(action, args, name=name, once=once)
            if not changed.changes:
                return
            if self._check is not None:
                self._check({key: values[key] for key in changed.changes}, values)
            if self._write is not None:
                self._write(changed)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - an action or a reducer is user code
            error = convert_user_error(raised, "action", name)
        else:
            self._commit(changed, values)
            self._notify()
            return
        self._note_failure(name, error)
        raise error

    def _check_not_acting(self) -> None:
        """Raise if an action or reducer is running. Its failure would not undo changes that it makes itself."""
        if self._is_acting:
            raise UsageError(
                "an action or a reducer must not call dispatch() or rollback(): return the changes instead"
            )

    def _decide(
        self, action: Any, args: tuple[Any, ...], *, name: str, once: str
    ) -> tuple[Mapping[str, Any], StateChangeRecord]:
        self._is_acting = True
        try:
            return self._reduce(self._act(action, args), name, once)
        finally:
            self._is_acting = False

    def _act(self, action: Any, args: tuple[Any, ...]) -> Sequence[Pair]:
        if isinstance(action, str):
            action = self._action(action)
        return _to_pairs(action(self.snapshot, *args) if callable(action) else action)

    def _action(self, name: str) -> Action:
        if name not in self._actions:
            known = ", ".join(self._actions) or "none"
            raise UsageError(
                f"no action is named {quoted(name)} (known: {known}): add it with add_action(), or give a value as one pair, "
                f"dispatch(({quoted(name)}, value))"
            )
        return self._actions[name]

    def _reduce(
        self, pairs: Sequence[Pair], name: str, once: str
    ) -> tuple[dict[str, Any], StateChangeRecord]:
        """Apply the pairs of an action to a copy of the state, with the reducers of their keys.

        Return the new values and the record of the change. The state itself is unchanged.
        """
        values, changes, reduced = dict(self._values), {}, {}
        for key, raw in pairs:
            value = _copy_input(key, raw)
            reducer = self._reducers.get(key)
            if reducer is None:
                values[key] = changes[key] = value
            elif (known := reducer_name(reducer)) and key not in changes:
                values[key] = reducer(values.get(key), value)
                changes[key], reduced[key] = value, known
            else:  # the result is recorded: the reducer is custom, or the key was already changed by this action
                values[key] = changes[key] = _copy_input(key, reducer(_copy(values.get(key)), value))
                reduced.pop(key, None)
        return values, StateChangeRecord(changes=changes, reduced=reduced, action=name, once=once)

    def _note_failure(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        failed = ActionFailureRecord(action=name, error=text)
        self._keep_in_history(failed)
        if self._write is None:
            return
        try:
            self._write(failed)
        except Exception as second:  # noqa: BLE001 - the error of the action is raised instead
            error.add_note(f"and the journal could not record the failure: {second}")

    def _commit(
        self, changed: StateChangeRecord, values: Mapping[str, Any], draft: StateBuilder | None = None
    ) -> None:
        self._values = values
        self._draft = draft
        self._number += 1
        if changed.once:
            self._remember(changed.once)
        self._keep_in_history(changed)

    def _remember(self, once: str) -> None:
        if self._once is None:
            self._once = {}
        self._once[once] = None
        if len(self._once) > self._keep:
            del self._once[next(iter(self._once))]

    def _keep_in_history(self, record: StateChangeRecord | ActionFailureRecord) -> None:
        self._history.append(record)
        if len(self._history) > self._keep:
            oldest = self._history.pop(0)
            if isinstance(oldest, StateChangeRecord):
                self._base.apply(oldest)
                self._first += 1

    # --- subscribers ---------------------------------------------------------------

    def subscribe(self, fn: Callable[[State], object]) -> Callable[[], None]:
        """Call `fn(state)` after each change; return a function that ends the subscription.

        `fn` runs synchronously in `dispatch`, and may itself dispatch. Its exceptions are logged.

        Raises:
            UsageError: `fn` is an async or a generator function.
        """
        if any(is_other(fn) for is_other in _IS_NOT_PLAIN_FUNCTION):
            raise UsageError(f"subscribe() needs a sync function (state) without `yield`, not {fn!r:.200}")
        if self._subscribers is None:
            self._subscribers = {}
        subscribers, key = self._subscribers, object()
        subscribers[key] = fn
        return lambda: subscribers.pop(key, None) and None

    def _notify(self) -> None:
        for fn in tuple((self._subscribers or {}).values()):
            try:
                fn(self.snapshot)
            except RecursionError:  # a subscriber dispatches in response to its own change
                raise
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the change is committed; its caller must not get the error
                convert_user_error(raised, "subscriber", repr(fn))
                _log.exception("a subscriber of the state failed: %s", fn)

    # --- history ----------------------------------------------------------------------------

    @property
    def snapshot(self) -> State:
        """The current state as an immutable object, which later changes do not affect."""
        return State(self._share_values())

    def _share_values(self) -> Mapping[str, Any]:
        self._draft = None
        return self._values

    @property
    def number(self) -> int:
        """Number of changes since the initial state."""
        return self._number

    @property
    def known(self) -> range:
        """Numbers of the states that `replay`, `rollback` and `fork` accept."""
        return range(self._first, self._number + 1)

    @property
    def history(self) -> tuple[Dispatched, ...]:
        """Dispatched actions in the history, oldest first. Actions that returned no changes are not in the history."""
        number, steps = self._first, []
        for record in self._history:
            number += isinstance(record, StateChangeRecord)
            steps.append(_dispatched(record, number))
        return tuple(steps)

    def replay(self, number: int) -> State:
        """Return the state after `number` changes, computed from the history. 0 is the initial state, `store.number` the newest.

        Raises:
            UsageError: The history does not have this state, or no longer has it.
        """
        return State(self._values_after(number)[0])

    def rollback(self, number: int) -> None:
        """Restore the state after `number` changes. The next change gets the number `number + 1`.

        Later changes are removed from the history. A journal keeps them, and a record of the rollback.

        Raises:
            UsageError: The history does not have this state, or no longer has it. The state is unchanged.
        """
        if threading.get_ident() != self._thread:
            trio.from_thread.run_sync(self._rollback, number)
        else:
            self._rollback(number)

    def _rollback(self, number: int) -> None:
        self._check_not_acting()
        self._check_number(number)
        if self._write is not None:
            self._write(StateRollbackRecord(number=number))
        self._restore_values_after(number)
        self._notify()

    def _restore_values_after(self, number: int) -> None:
        self._values, length = self._values_after(number)
        self._draft = None
        del self._history[length:]
        self._number = number

    def fork(self, number: int | None = None) -> "Store":
        """Return a new store that starts from the state after `number` changes, by default from the current state.

        The fork has the same history, reducers and actions, but neither a journal nor subscribers.

        Raises:
            UsageError: The history does not have this state, or no longer has it.
        """
        number = self._number if number is None else number
        values, length = self._values_after(number)
        fork = Store(reducers=self._reducers, actions=self._actions, check=self._check, history=self._keep)
        fork._thread = self._thread
        fork._values, fork._number = values, number
        fork._base, fork._first = StateBuilder(self._base.share()), self._first
        fork._history = self._history[:length]
        fork._once = None if self._once is None else dict(self._once)
        return fork

    def _values_after(self, number: int) -> tuple[Mapping[str, Any], int]:
        """Return the values of the state after `number` changes, and the number of history entries that lead to it."""
        self._check_number(number)
        if number == self._number:
            return self._share_values(), len(self._history)
        state, left = StateBuilder(self._base.share()), number - self._first
        for length, record in enumerate(self._history):
            if isinstance(record, StateChangeRecord):
                if not left:
                    return state.values, length
                state.apply(record)
                left -= 1
        raise AssertionError("the history is shorter than its number")

    def _check_number(self, number: int) -> None:
        if type(number) is not int or number not in self.known:
            raise UsageError(
                f"the store keeps only the states {self._first} to {self._number} "
                f"(the history keeps the last {self._keep} actions), but not {number!r}"
            )

    # --- restoring ---------------------------------------------------------------------

    def restore(self, record: StateRecord) -> None:
        """Apply a journal record without running actions, writing records or notifying subscribers."""
        match record:
            case StateChangeRecord():
                if record.patches:
                    record = with_values(record, self._values)
                draft = self._draft or StateBuilder(self._values)
                draft.apply(record)
                self._commit(record, draft.values, draft)
            case ActionFailureRecord():
                self._keep_in_history(record)
            case StateRollbackRecord(number=number):
                self._restore_values_after(number)

    def save(self) -> SavedStore:
        """Return the content of the store with its history, for a snapshot; `load` restores it."""
        return SavedStore(
            base=dict(self._base.values),
            first=self._first,
            history=tuple(self._history),
            once=tuple(self._once or ()),
        )

    def load(self, saved: SavedStore) -> None:
        """Load saved content into a new store."""
        self._base, self._first = StateBuilder(saved.base), saved.first
        self._history = list(saved.history)
        values = StateBuilder(saved.base)
        for record in self._history:
            if isinstance(record, StateChangeRecord):
                values.apply(record)
                self._number += 1
        self._number += saved.first
        self._values = values.values
        self._once = dict.fromkeys(saved.once) or None


def _dispatched(record: StateChangeRecord | ActionFailureRecord, number: int) -> Dispatched:
    if isinstance(record, ActionFailureRecord):
        return Dispatched(number=number, action=record.action, changes=_NOTHING, error=record.error)
    return Dispatched(number=number, action=record.action, changes=State(record.changes))


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _action_name(action: object) -> str:
    """Return the name of an action for the history; empty for lambdas and for pairs of key and value."""
    if isinstance(action, str):
        return action
    if not callable(action):
        return ""
    while isinstance(action, partial):
        action = action.func
    name: str = getattr(action, "__name__", type(action).__name__)
    return "" if name == "<lambda>" else name


def _to_pairs(returned: object) -> Sequence[Pair]:
    match returned:
        case None:
            return ()
        case (str(key), value):
            return ((key, value),)
        case list() | tuple() if all(_is_pair(item) for item in returned):
            return returned
    meant = ""
    if inspect.iscoroutine(returned):
        returned.close()
        meant = ": an action is a plain function, which does not await"
    elif isinstance(returned, Mapping):
        meant = ": write list(changes.items())"
    raise UsageError(
        f"an action must return (key, value), a list of such pairs, or None, not {returned!r:.200}{meant}"
    )


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)  # noqa: PLR2004 - the length of a (key, value) pair


def _copy_input(key: str, value: object) -> Any:
    """Return a copy of a value that a caller puts into the state under `key`.

    Raises:
        NotSerializable: The value cannot be copied.
    """
    try:
        return _copy(value)
    except RecursionError as error:
        raise NotSerializable(key, "it is nested too deep, or contains itself") from error
    except Exception as error:  # a class of the caller may raise anything
        raise NotSerializable(key, f"it cannot be copied ({error})") from error


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return value
    if kind is list or kind is tuple:
        items = [item if type(item) in _IMMUTABLE_TYPES else _copy(item) for item in value]
        return items if kind is list else tuple(items)
    if kind is dict or isinstance(value, Mapping):
        return {key: item if type(item) in _IMMUTABLE_TYPES else _copy(item) for key, item in value.items()}
    return copy.deepcopy(value)
