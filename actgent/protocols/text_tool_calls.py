"""Parser of tool calls that models write into their text: a tool name and arguments, under any of the usual keys.

Each protocol has its own key for the tool name. Models often use argument keys of other providers, so all
usual keys are read. Two different argument values are an error for the model. An unknown key in the call
is also an error: if the key were ignored, the tool would run with default values. Models add remarks to the object around the
call. There, only keys that resemble argument names are errors, or any key that is no remark if a call has no
arguments.
"""

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ParseError
from actgent.errors.text_escaping import quoted
from actgent.support.attrs_class_repr import FieldRepr
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
_CALL_TYPES = (None, "function", "function_call", "tool", "tool_call", "tool_use")
_ARGUMENT_KEYS = frozenset(ARGUMENTS)
_METADATA_KEYS = frozenset((*IDS, "type", "index"))
_REMARKS = frozenset(
    "analysis comment confidence explanation rationale reason reasoning thought thoughts toolthought".split()
)
"""Keys in a written call that hold explanations, in lower case without separators. They are never arguments."""
_EMPTY_VALUES: tuple[Any, ...] = (None, "", {}, [])
_MAX_SHOWN_KEY_CHARS = 100


@attrs.frozen(repr=False)
class WrittenCall(FieldRepr):
    """A tool call parsed from the text of a model."""

    name: str
    """Tool name exactly as the model wrote it; with a trailing space it does not match a tool."""
    arguments: Any
    """JSON value of the arguments; an empty object if the call has none."""
    id: str | None = None


@attrs.frozen(repr=False)
class CallFormat(FieldRepr):
    """The format in which a protocol expects tool calls."""

    names: tuple[str, ...]
    """JSON keys that may hold the tool name."""
    expected: str
    """Error text for a tool call whose JSON object has no tool name under any of `names`."""
    decodes: bool = False
    """True if arguments may be the JSON text of an object, and if calls in the provider's format are accepted."""

    def read(self, value: Any) -> WrittenCall:
        """Parse an object as a tool call.

        Raises:
            ParseError: The object is not a tool call, or has unknown keys.
        """
        if not isinstance(value, Mapping):
            raise ParseError(self.expected)
        function = value.get("function")
        if self.decodes and isinstance(function, Mapping):
            return self._read_encoded(value, function)
        name = self._name_in(value, self.names)
        check_keys(value, _allowed_keys(self.names), name)
        if value.get("type") not in _CALL_TYPES:
            raise ParseError(
                f"the call of {quoted(name)} must not have the type {value['type']!r:.200}: omit the type"
            )
        return WrittenCall(name, find_arguments(value, name, decodes=self.decodes), _id_in(value))

    def is_call(self, value: Any) -> bool:
        """Return True if a value is a tool call. Its arguments need not be an object."""
        try:
            self.read(value)
        except ParseError:
            return False
        return True

    def read_whole(self, value: Any) -> WrittenCall:
        """Parse an object as a tool call with an object as arguments.

        Raises:
            ParseError: The object is not a tool call, has unknown keys, or its arguments are not an object.
        """
        call = self.read(value)
        if not isinstance(call.arguments, dict):
            raise ParseError(f"the arguments of {quoted(call.name)} must be an object")
        return call

    def calls_reason(
        self,
        entries: Sequence[Any],
        *envelopes: tuple[str, Mapping[str, Any], Collection[str]],
        takes_any: bool = False,
    ) -> str | None:
        """Return an error text if an entry is not a valid tool call, or if an argument is outside of the calls; None otherwise.

        Args:
            entries: The values that must be tool calls.
            envelopes: The objects around the calls. Each has the name of its calls for the error text, the object, and the
                keys that the protocol defines for it.
            takes_any: True to accept arguments that are not an object here. The execution of the call rejects them.
        """
        read = self.read if takes_any else self.read_whole
        try:
            calls = [read(entry) for entry in entries]
        except ParseError as error:
            return error.reason
        are_bare = not all(call.arguments for call in calls)
        reasons = (
            stray_arguments_reason(envelope, label, envelope_keys=keys, are_bare=are_bare)
            for label, envelope, keys in envelopes
        )
        return next(filter(None, reasons), None)

    def _read_encoded(self, value: Mapping[str, Any], function: Mapping[str, Any]) -> WrittenCall:
        """Parse a call in the provider's format, `{"id", "type", "function": {"name", "arguments"}}`."""
        name = self._name_in(function, ("name",))
        check_keys(value, {*_METADATA_KEYS, "function"}, name)
        check_keys(function, _ENCODED_FUNCTION_KEYS, name)
        return WrittenCall(name, find_arguments(function, name, decodes=self.decodes), _id_in(value))

    def _name_in(self, value: Mapping[str, Any], keys: Sequence[str]) -> str:
        names = [value[key] for key in keys if value.get(key) is not None]
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise ParseError(self.expected)
        if any(name != names[0] for name in names):
            raise ParseError("a call names two tools: write a separate call for each")
        return str(names[0])


@functools.cache
def _allowed_keys(names: tuple[str, ...]) -> frozenset[str]:
    """Return all keys that a call may have in a format whose tool name is in one of `names`."""
    return frozenset((*_METADATA_KEYS, *names, *ARGUMENTS))


_ENCODED_FUNCTION_KEYS = frozenset(("name", *ARGUMENTS))


def find_arguments(value: Mapping[str, Any], name: str, *, decodes: bool = False) -> Any:
    """Return the arguments of a call from any of the usual keys; an empty object if no key is present.

    `name` is the tool's name for errors. With `decodes`, arguments in JSON text are decoded; invalid JSON stays text.

    Raises:
        ParseError: Two keys have different arguments.
    """
    found = {
        key: _decode(given, decodes=decodes)
        for key, given in value.items()
        if given is not None and key in _ARGUMENT_KEYS
    }
    if len(found) > 1 and len(set(map(_canonical, found.values()))) > 1:
        raise ParseError(
            f"the call of {quoted(name)} has {' and '.join(found)}, which differ: write the arguments once"
        )
    return next(iter(found.values()), {})


def check_keys(value: Mapping[str, Any], allowed: Collection[str], name: str) -> None:
    """Check that the object of a call has only the keys `allowed`. `name` is the tool's name for errors.

    Raises:
        ParseError: A key is unknown.
    """
    for key in value:
        if key not in allowed:
            raise ParseError(
                f"unknown key {quoted(key, _MAX_SHOWN_KEY_CHARS)} in the call of {quoted(name)}: put all arguments into one object"
            )


def stray_arguments_reason(
    envelope: Mapping[str, Any], label: str, *, envelope_keys: Collection[str], are_bare: bool
) -> str | None:
    """Return an error text if the object around a call has members that may be arguments of the call; None otherwise.

    Args:
        envelope: The object around the call.
        label: Name of the call in the error text.
        envelope_keys: Keys that the protocol defines for `envelope`.
        are_bare: True if a call in the envelope has no arguments.
    """
    for key, value in envelope.items():
        if key in envelope_keys or value in _EMPTY_VALUES:
            continue
        normalized = _normalize(key)
        if normalized in _ARGUMENT_LIKE_KEYS or (are_bare and normalized not in _REMARKS):
            return (
                f"{quoted(key, _MAX_SHOWN_KEY_CHARS)} is outside of {label}: put the arguments into the call"
            )
    return None


def _normalize(key: str) -> str:
    """Return a key in lower case without separators: models write `Tool-Input` for `tool_input`."""
    return "".join(filter(str.isalnum, key)).casefold()


_SINGULAR = ("argument", "arg", "parameter", "param")
_PREFIXES = ("", "tool", "function", "action", "call")
_ARGUMENT_LIKE_KEYS = frozenset(
    prefix + name for prefix in _PREFIXES for name in (*_SINGULAR, *map(_normalize, ARGUMENTS))
)


def _id_in(value: Mapping[str, Any]) -> str | None:
    for key in IDS:
        call_id = value.get(key)
        if isinstance(call_id, str) and call_id:
            return call_id
    return None


def _decode(arguments: Any, *, decodes: bool) -> Any:
    if not decodes or not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return loads(arguments)
    except ParseError:
        return arguments


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
