"""Tool calls as models write them into their text: a name and one set of arguments, under whichever of their usual keys.

Each protocol has its own key for the tool's name. For the arguments models use those of other providers, too: all usual
ones are read. Two that differ, and a key that nobody knows beside a call, are errors for the model to read, since what
is passed over would let the tool run with its defaults. Round the object of the call, where models remark on it, that
goes for keys like those of arguments, and for all but remarks where a call has no arguments.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.errors.printable import quoted
from actgent.support.strict_json import loads

ARGUMENTS = (
    "arguments",
    "args",
    "input",
    "inputs",
    "parameters",
    "params",
    "kwargs",
    "tool_input",
    "toolInput",
    "action_input",
    "actionInput",
    "tool_args",
    "toolArgs",
    "tool_arguments",
    "toolArguments",
    "tool_parameters",
    "toolParameters",
)
IDS = ("id", "call_id", "callId", "tool_call_id", "toolCallId")
_KINDS = (None, "function", "function_call", "tool", "tool_call", "tool_use")
_BESIDE = frozenset((*IDS, "type", "index"))
_REMARKS = frozenset(
    "analysis comment confidence explanation rationale reason reasoning thought thoughts toolthought".split()
)
"""What models say of an answer, in small letters; never taken for arguments."""
_NOTHING: tuple[Any, ...] = (None, "", {}, [])
_SHOWN = 100


@attrs.frozen
class WrittenCall:
    """A tool call in a model's text."""

    name: str
    """As it was written: a name with a space behind it is another one."""
    arguments: Any
    """The JSON value that stands for them; an empty object if there is none."""
    id: str | None = None


@attrs.frozen
class CallForm:
    """How a protocol asks for calls."""

    names: tuple[str, ...]
    """The keys of the tool's name."""
    wanted: str
    """What is said of a value that names no tool."""
    decodes: bool = False
    """True if arguments may come as the text of a JSON object, and a call in the provider's form."""

    def read(self, value: Any) -> WrittenCall:
        """The call that an object stands for.

        Raises:
            ParseError: it stands for none, or holds what would be passed over.
        """
        if not isinstance(value, Mapping):
            raise ParseError(self.wanted)
        function = value.get("function")
        if self.decodes and isinstance(function, Mapping):
            return self._read_encoded(value, function)
        name = self._name_in(value, self.names)
        check_keys(value, {*_BESIDE, *self.names, *ARGUMENTS}, name)
        if value.get("type") not in _KINDS:
            raise ParseError(f"the call of {quoted(name)} has the type {value['type']!r:.200}: leave it out")
        return WrittenCall(name, arguments_in(value, name, decodes=self.decodes), _id_in(value))

    def reason(self, value: Any, *, takes_any: bool = False) -> str | None:
        """Explain what is wrong with the call that an object stands for, None if nothing.

        `takes_any` leaves arguments that are no object to the check of the call.
        """
        try:
            call = self.read(value)
        except ParseError as error:
            return error.reason
        if takes_any or isinstance(call.arguments, dict):
            return None
        return f"the arguments of {quoted(call.name)} must be an object"

    def is_bare(self, calls: Iterable[Any]) -> bool:
        """Return True if one of these calls, all of them right, has no arguments."""
        return not all(self.read(call).arguments for call in calls)

    def _read_encoded(self, value: Mapping[str, Any], function: Mapping[str, Any]) -> WrittenCall:
        """A call in the provider's form, `{"id", "type", "function": {"name", "arguments"}}`."""
        name = self._name_in(function, ("name",))
        check_keys(value, {*_BESIDE, "function"}, name)
        check_keys(function, {"name", *ARGUMENTS}, name)
        return WrittenCall(name, arguments_in(function, name, decodes=self.decodes), _id_in(value))

    def _name_in(self, value: Mapping[str, Any], keys: Sequence[str]) -> str:
        given = [value[key] for key in keys if value.get(key) is not None]
        if not given or not all(isinstance(name, str) and name.strip() for name in given):
            raise ParseError(self.wanted)
        if any(name != given[0] for name in given):
            raise ParseError("a call names two tools: give each a call of its own")
        return str(given[0])


def arguments_in(value: Mapping[str, Any], name: str, *, decodes: bool = False) -> Any:
    """Return what stands under the usual keys for arguments; an empty object if none has any.

    Raises:
        ParseError: two of them differ.
    """
    given = {key: _decoded(value[key], decodes=decodes) for key in ARGUMENTS if value.get(key) is not None}
    if len(set(map(_canonical, given.values()))) > 1:
        raise ParseError(
            f"the call of {quoted(name)} has {' and '.join(given)}, which differ: give arguments once"
        )
    return next(iter(given.values()), {})


def check_keys(value: Mapping[str, Any], known: Collection[str], name: str) -> None:
    """Refuse what would be passed over.

    Raises:
        ParseError: a key is not known.
    """
    for key in value:
        if key not in known:
            raise ParseError(
                f"{quoted(key, _SHOWN)} beside the call of {quoted(name)} is not known: put all arguments into one object"
            )


def stray_arguments(
    envelope: Mapping[str, Any], what: str, *, known: Collection[str], are_bare: bool
) -> str | None:
    """Explain what stands round the object of a call and may be its arguments, None if nothing does.

    `known` are the keys of the protocol; `are_bare` is True if a call has no arguments of its own.
    """
    for key, value in envelope.items():
        if key in known or value in _NOTHING:
            continue
        if _letters(key) in _LIKE_ARGUMENTS or (are_bare and _letters(key) not in _REMARKS):
            return f"{quoted(key, _SHOWN)} stands beside {what}: put the arguments into the call"
    return None


def _letters(key: str) -> str:
    """A key without its case and what joins its words: models write `Tool-Input` for `tool_input`."""
    return "".join(filter(str.isalnum, key)).casefold()


_SINGULAR = ("argument", "arg", "parameter", "param")
_OWNERS = ("", "tool", "function", "action", "call")
_LIKE_ARGUMENTS = frozenset(
    owner + name for owner in _OWNERS for name in (*_SINGULAR, *map(_letters, ARGUMENTS))
)


def _id_in(value: Mapping[str, Any]) -> str | None:
    given = (value.get(key) for key in IDS)
    return next((each for each in given if isinstance(each, str) and each), None)


def _decoded(given: Any, *, decodes: bool) -> Any:
    if not decodes or not isinstance(given, str):
        return given
    if not given.strip():
        return {}
    try:
        return loads(given)
    except ParseError:
        return given


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
