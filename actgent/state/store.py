"""The store: a session's state, which only actions change.

An action is a function of the state that returns `(key, value)`, several such pairs, or None. Where a
key has a reducer, the value given meets the one that is there; else it takes its place. All changes of
an action count or none: what an action raises leaves the state as it was, and stands in the history.

Changes are numbered from 1. The store keeps the newest `history` of them as what they changed, not as
copies of the state, so any state back to there can be computed again.

Values are copied as they come in and as they are read, so neither what an action returned nor what
someone got from a state leads into the store. Texts and numbers cost nothing by that, lists and mappings
as much as they are long. Objects of other classes are deep-copied; a journal takes plain data only.
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
from actgent.errors.printable import quoted
from actgent.journal.records import ActionFailed, Changed, RolledBack
from actgent.journal.state_patches import with_values
from actgent.support.foreign import failure_of
from actgent.support.leads import DISPATCH, for_states
from actgent.support.logs import logger_of

from .builder import StateBuilder
from .reducers import Reducer, reducer_name

Pair = tuple[str, Any]
Action = Callable[..., Any]
StateCheck = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
"""Gets the changed values and the whole new state; an exception undoes the change."""
StateRecord = Changed | ActionFailed | RolledBack

HISTORY = 1000
"""How many changes and failed actions a store keeps. A journal's rollbacks rely on it: it may grow, not shrink."""
ERROR_CHARACTERS = 500
_STILL = frozenset({type(None), bool, int, float, complex, str, bytes, date, datetime})
_log = logger_of(__name__)
_set = object.__setattr__
_NOT_RUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@attrs.frozen(kw_only=True)
class Dispatched:
    """An action that a store ran."""

    number: int
    """Of the state after it, from 1; a failed action has the number of the state that it left as it was."""
    action: str
    """Its name; empty where it was a pair."""
    changes: Mapping[str, Any]
    """What it gave, before reducers; for one of a developer's own, what that made of it."""
    error: str = ""
    """What it raised; empty where it did not."""


@attrs.frozen(kw_only=True)
class SavedStore:
    """A store as records made it, for a snapshot of its session."""

    base: Mapping[str, Any]
    """The state before the oldest change that is kept."""
    first: int
    """Its number."""
    history: tuple[Changed | ActionFailed, ...]
    once: tuple[str, ...]


class State(Mapping[str, Any]):
    """A state of one moment: nothing changes it, and what is read from it is a copy."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value if type(value) in _STILL else _copied(value)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._values)!r})"


@for_states
class Store(State):
    """A read-only mapping with `dispatch`.

    Args:
        initial: The state number 0.
        reducers: For each key how a new value meets the old one; see `actgent.state.reducers`.
        actions: Actions by name, for `dispatch("name")`.
        check: Called with the changed values and the whole new state before a change counts; an exception undoes the change.
        write: Called with the record of each change before it counts; what it raises undoes the change.
        history: How many actions are kept, at least 1.
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
        history: int = HISTORY,
    ) -> None:
        super().__init__({key: _owned(key, value) for key, value in (initial or {}).items()})
        self._reducers: dict[str, Reducer] = {}
        self._actions: dict[str, Action] = {}
        for key, reducer in (reducers or {}).items():
            self.add_reducer(key, reducer)
        for name, action in (actions or {}).items():
            self.add_action(name, action)
        self._check, self._write = check, write
        self._keep = max(1, history)
        self._draft: StateBuilder | None = None
        """The state, while it is made again from records and nobody has a snapshot of it."""
        self._base = StateBuilder(self._values)
        """The state before the oldest change that is kept."""
        self._first = 0
        """Its number."""
        self._number = 0
        self._history: list[Changed | ActionFailed] = []
        self._once: dict[str, None] | None = None
        self._subscribers: dict[object, Callable[[State], object]] | None = None
        self._is_acting = False
        self._thread = threading.get_ident()

    def __setattr__(self, name: str, value: object) -> None:
        try:
            _set(self, name, value)
        except AttributeError:
            raise AttributeError(f"{name!r} cannot be set: {DISPATCH}", name=name, obj=None) from None

    # --- what may happen to it -----------------------------------------------------------

    def add_reducer(self, key: str, reducer: Reducer) -> None:
        """From now on `reducer(old, new)` decides what a value given for this key makes of the one that is there.

        It has to be pure and sync. What was journaled before is read as it was written, whatever is registered.
        """
        if not callable(reducer):
            raise UsageError(f"the reducer of {key!r} is a function (old, new), not {reducer!r}")
        self._reducers[key] = reducer

    def has_reducer(self, key: str) -> bool:
        """Return True if a value given for this key meets the one that is there."""
        return key in self._reducers

    def add_action(self, name: str, action: Action) -> None:
        """Let `dispatch(name, *args)` run `action(state, *args)`."""
        if not callable(action):
            raise UsageError(f"the action {name!r} is a function of the state, not {action!r}")
        self._actions[name] = action

    # --- change --------------------------------------------------------------------------

    def dispatch(
        self, action: Action | str | Pair | Sequence[Pair] | None, *args: Any, once: str = ""
    ) -> None:
        """Change the state by an action: all changes of the action, or none.

        The action is a function `(state, *args)` that returns `(key, value)`, a list of pairs or None; the name of a registered
        function; or such a pair or list itself: `dispatch(("language", "en"))`. A call from the worker thread of a tool runs in
        the thread of the event loop. `once` is an id: a second dispatch with this id changes nothing. A repeated tool passes its
        `effect_key`, a handler the id of its argument.

        Raises:
            UsageError: The name is not registered, or the function returned something else. The state is unchanged.
            InvalidState: A value does not fit the type of `state=`. The state is unchanged.
            NotSerializable: The journal cannot store a value. The state is unchanged.
        """
        if threading.get_ident() != self._thread:
            trio.from_thread.run_sync(self._dispatch, action, args, once)
        else:
            self._dispatch(action, args, once)

    def _dispatch(self, action: Any, args: tuple[Any, ...], once: str) -> None:
        if once and self._once is not None and once in self._once:
            return
        self._check_still()
        name = _name(action)
        try:
            values, changed = self._decide(action, args, name=name, once=once)
            if not changed.changes:
                return
            if self._check is not None:
                self._check({key: values[key] for key in changed.changes}, values)
            if self._write is not None:
                self._write(changed)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - of an action or a reducer: foreign code
            error = failure_of(raised, "action", name)
        else:
            self._take(changed, values)
            self._tell()
            return
        self._note_failure(name, error)
        raise error

    def _check_still(self) -> None:
        """Refuse what an action or a reducer changed besides: it would count if the action fails, or be overwritten."""
        if self._is_acting:
            raise UsageError(
                "an action or a reducer must not dispatch or roll back: let it return its changes"
            )

    def _decide(
        self, action: Any, args: tuple[Any, ...], *, name: str, once: str
    ) -> tuple[Mapping[str, Any], Changed]:
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

    def _reduce(self, pairs: Sequence[Pair], name: str, once: str) -> tuple[dict[str, Any], Changed]:
        """The state that the pairs make of this one, and its record."""
        values, changes, reduced = dict(self._values), {}, {}
        for key, given in pairs:
            value = _owned(key, given)
            reducer = self._reducers.get(key)
            if reducer is None:
                values[key] = changes[key] = value
            elif (known := reducer_name(reducer)) and key not in changes:
                values[key] = reducer(values.get(key), value)
                changes[key], reduced[key] = value, known
            else:  # what it makes is written, since nobody else may know the reducer, or it was not the only one
                values[key] = changes[key] = _owned(key, reducer(_copied(values.get(key)), value))
                reduced.pop(key, None)
        return values, Changed(changes=changes, reduced=reduced, action=name, once=once)

    def _note_failure(self, name: str, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        failed = ActionFailed(action=name, error=words)
        self._keep_in_history(failed)
        if self._write is None:
            return
        try:
            self._write(failed)
        except Exception as second:  # noqa: BLE001 - the first error is the one to be raised
            error.add_note(f"and the journal did not take that it failed: {second}")

    def _take(self, changed: Changed, values: Mapping[str, Any], draft: StateBuilder | None = None) -> None:
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

    def _keep_in_history(self, record: Changed | ActionFailed) -> None:
        self._history.append(record)
        if len(self._history) > self._keep:
            oldest = self._history.pop(0)
            if isinstance(oldest, Changed):
                self._base.apply(oldest)
                self._first += 1

    # --- who wants to know ---------------------------------------------------------------

    def subscribe(self, fn: Callable[[State], object]) -> Callable[[], None]:
        """Have `fn(state)` called after each change; returns a function that ends it.

        It is called where the change was made, and may dispatch. What it raises is logged.

        Raises:
            UsageError: it is no function, or one that a call does not run: an async or a generator function.
        """
        if any(is_other(fn) for is_other in _NOT_RUN):
            raise UsageError(f"subscribe() takes a sync function (state), without `yield`, not {fn!r:.200}")
        if self._subscribers is None:
            self._subscribers = {}
        subscribers, key = self._subscribers, object()
        subscribers[key] = fn
        return lambda: subscribers.pop(key, None) and None

    def _tell(self) -> None:
        for fn in tuple((self._subscribers or {}).values()):
            try:
                fn(self.snapshot)
            except RecursionError:  # it dispatches at each change, also its own
                raise
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the change is made; who made it is not to blame
                failure_of(raised, "subscriber", repr(fn))
                _log.exception("a subscriber of the state failed: %s", fn)

    @property
    def shared_values(self) -> Mapping[str, Any]:
        """The values themselves, not copies: the caller must not change them."""
        return self._values

    # --- time ----------------------------------------------------------------------------

    @property
    def snapshot(self) -> State:
        """The state of this moment, which no later dispatch changes."""
        return State(self._shared())

    def _shared(self) -> Mapping[str, Any]:
        self._draft = None
        return self._values

    @property
    def number(self) -> int:
        """The number of changes that led to this state."""
        return self._number

    @property
    def known(self) -> range:
        """The numbers of the states that `replay`, `rollback` and `fork` take."""
        return range(self._first, self._number + 1)

    @property
    def history(self) -> tuple[Dispatched, ...]:
        """The actions that are kept, oldest first; those that gave nothing are not."""
        number, steps = self._first, []
        for record in self._history:
            number += isinstance(record, Changed)
            steps.append(_dispatched(record, number))
        return tuple(steps)

    def replay(self, number: int) -> State:
        """Return the state after `number` changes, computed from the history. 0 is the initial state, `store.number` the newest.

        Raises:
            UsageError: The history does not have this state, or no longer has it.
        """
        return State(self._after(number)[0])

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
        self._check_still()
        self._check_number(number)
        if self._write is not None:
            self._write(RolledBack(number=number))
        self._go_back(number)
        self._tell()

    def _go_back(self, number: int) -> None:
        self._values, length = self._after(number)
        self._draft = None
        del self._history[length:]
        self._number = number

    def fork(self, number: int | None = None) -> "Store":
        """A new store that goes on from the state after so many changes, by default from this one.

        It has the same history up to there, reducers and actions; no journal hears of it, and no subscriber.

        Raises:
            UsageError: there is no such state, or no longer.
        """
        number = self._number if number is None else number
        values, length = self._after(number)
        fork = Store(reducers=self._reducers, actions=self._actions, check=self._check, history=self._keep)
        fork._thread = self._thread
        fork._values, fork._number = values, number
        fork._base, fork._first = StateBuilder(self._base.share()), self._first
        fork._history = self._history[:length]
        fork._once = None if self._once is None else dict(self._once)
        return fork

    def _after(self, number: int) -> tuple[Mapping[str, Any], int]:
        """The state of a number, and how much of the history led to it, what failed in it included."""
        self._check_number(number)
        if number == self._number:
            return self._shared(), len(self._history)
        state, left = StateBuilder(self._base.share()), number - self._first
        for length, record in enumerate(self._history):
            if isinstance(record, Changed):
                if not left:
                    return state.values, length
                state.apply(record)
                left -= 1
        raise AssertionError("the history is shorter than its number")

    def _check_number(self, number: int) -> None:
        if type(number) is not int or number not in self.known:
            raise UsageError(
                f"the store knows its states from {self._first} to {self._number} "
                f"(of the actions, the last {self._keep} are kept), and not {number!r}"
            )

    # --- the journal ---------------------------------------------------------------------

    def restore(self, record: StateRecord) -> None:
        """Do again what was journaled, exactly: no action runs, nothing is written, nobody is told."""
        match record:
            case Changed():
                if record.patches:
                    record = with_values(record, self._values)
                draft = self._draft or StateBuilder(self._values)
                draft.apply(record)
                self._take(record, draft.values, draft)
            case ActionFailed():
                self._keep_in_history(record)
            case RolledBack(number=number):
                self._go_back(number)

    def save(self) -> SavedStore:
        """All that records made of it, for `bring_back`."""
        return SavedStore(
            base=dict(self._base.values),
            first=self._first,
            history=tuple(self._history),
            once=tuple(self._once or ()),
        )

    def bring_back(self, saved: SavedStore) -> None:
        """Take over what was saved, in a store in which nothing has happened."""
        self._base, self._first = StateBuilder(saved.base), saved.first
        self._history = list(saved.history)
        values = StateBuilder(saved.base)
        for record in self._history:
            if isinstance(record, Changed):
                values.apply(record)
                self._number += 1
        self._number += saved.first
        self._values = values.values
        self._once = dict.fromkeys(saved.once) or None


def _dispatched(record: Changed | ActionFailed, number: int) -> Dispatched:
    if isinstance(record, ActionFailed):
        return Dispatched(number=number, action=record.action, changes=_NOTHING, error=record.error)
    return Dispatched(number=number, action=record.action, changes=State(record.changes))


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _name(action: object) -> str:
    """Return the name of an action in the history; empty for lambdas and plain changes, which have none."""
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
    raise UsageError(f"an action returns (key, value), a list of them, or None, not {returned!r:.200}{meant}")


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)  # noqa: PLR2004 - a pair is two


def _owned(key: str, value: object) -> Any:
    """A copy of a value that comes in, if it can be copied.

    Raises:
        NotSerializable: it cannot.
    """
    try:
        return _copied(value)
    except RecursionError as error:
        raise NotSerializable(key, "too deep, or it contains itself") from error
    except Exception as error:  # whatever a foreign class raises
        raise NotSerializable(key, f"it cannot be copied ({error})") from error


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _STILL:
        return value
    if kind is list or kind is tuple:
        items = [item if type(item) in _STILL else _copied(item) for item in value]
        return items if kind is list else tuple(items)
    if kind is dict or isinstance(value, Mapping):
        return {key: item if type(item) in _STILL else _copied(item) for key, item in value.items()}
    return copy.deepcopy(value)
