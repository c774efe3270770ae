"""Forms for human input: fields as JSON Schema, which every client can display and validate.

Each `Field` has a kind, such as `date`, by which terminals and web pages choose the input control. In JSON Schema,
a field is a property whose keyword `x-input` names the kind. Forms from other sources, such as MCP servers, lack
the keyword; their kinds are derived from the types.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, get_args

import attrs

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.support.attrs_class_repr import FieldRepr

FieldKind = Literal[
    "boolean", "text", "select", "multiselect", "number", "date", "datetime", "file", "confirm", "custom"
]
"""Kind of a field, which determines the input control.

Dates are texts in the format of RFC 3339. A `file` is an object with `name`, `media_type` and `data` (base64).
`confirm` must be True. `custom` is described by its own JSON Schema.
"""
KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
"""All kinds of fields."""
INPUT = "x-input"
"""JSON Schema keyword for the kind of a field."""
MAX_FILE_BYTES = 1_000_000
"""Default maximum size of a file in bytes."""
_BOUNDED: Mapping[str, tuple[str, str]] = {
    "text": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "multiselect": ("minItems", "maxItems"),
}


@attrs.frozen(repr=False)
class Field(FieldRepr):
    """One input field of a form.

    Raises:
        ConfigurationError: The arguments are invalid or contradict each other. The text gives the reason.
    """

    name: str
    """Name of the property that holds the value."""
    kind: FieldKind = "text"
    """Kind of the field; see `FieldKind`."""
    label: str = attrs.field(default="", kw_only=True)
    """Label that is displayed; empty displays the name."""
    help: str = attrs.field(default="", kw_only=True)
    """Additional help text that is displayed; empty for none."""
    required: bool = attrs.field(default=True, kw_only=True)
    """True if a value is required."""
    options: Sequence[str] = attrs.field(default=(), converter=tuple, kw_only=True)
    """Values to choose from, for the kinds `select` and `multiselect`."""
    minimum: float | None = attrs.field(default=None, kw_only=True)
    """Minimum value of a number, minimum length of a text in characters, or minimum number of chosen options of a `multiselect`.
    None sets no minimum.
    """
    maximum: float | None = attrs.field(default=None, kw_only=True)
    """Maximum, in the unit of `minimum`; for a file its size in bytes (default 1,000,000). None sets no maximum."""
    default: Any = attrs.field(default=None, kw_only=True)
    """Initial value; None leaves the field empty."""
    schema: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """JSON Schema of the value, for the kind `custom` only."""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # type: ignore[redundant-expr]
            raise ConfigurationError(f"a field must have a name that is not empty, not {self.name!r}")
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"field {self.name!r}: kind= must be a known kind, not {self.kind!r}: {did_you_mean_or_list(str(self.kind), KINDS)}"
            )
        if (self.kind in ("select", "multiselect")) != bool(self.options):
            raise ConfigurationError(
                f"field {self.name!r}: options= must have at least one value for the kinds select and multiselect, and must be empty for other kinds"
            )
        if (self.kind == "custom") != (self.schema is not None):
            raise ConfigurationError(
                f"field {self.name!r}: schema= is required for the kind custom, and must be omitted for other kinds"
            )

    @property
    def member(self) -> Mapping[str, Any]:
        """JSON Schema of the field's value."""
        schema = {"title": self.label, "description": self.help, "default": self.default}
        about = {name: value for name, value in schema.items() if value not in ("", None)}
        return {INPUT: self.kind, **about, **self._type(), **self._bounds()}

    def _type(self) -> Mapping[str, Any]:
        chosen = {"enum": list(self.options)}
        types: Mapping[FieldKind, Mapping[str, Any]] = {
            "boolean": {"type": "boolean"},
            "confirm": {"const": True},
            "number": {"type": "number"},
            "select": chosen,
            "multiselect": {"type": "array", "items": chosen, "uniqueItems": True},
            "date": {"type": "string", "format": "date"},
            "datetime": {"type": "string", "format": "date-time"},
            "file": _file(int(self.maximum or MAX_FILE_BYTES)),
            "custom": self.schema or {},
        }
        return types.get(self.kind, {"type": "string"})

    def _bounds(self) -> Mapping[str, Any]:
        names = _BOUNDED.get(self.kind)
        if names is None:
            return {}
        least = self.minimum
        if least is None and self.required and self.kind != "number":
            least = 1
        bounds = {names[0]: least, names[1]: self.maximum}
        whole = self.kind != "number"
        return {
            name: int(value) if whole else value
            for name, value in bounds.items()
            if value is not None and math.isfinite(value)
        }


def _file(most: int) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 200},
            "media_type": {"type": "string", "maxLength": 200},
            "data": {"type": "string", "maxLength": 4 * math.ceil(most / 3), "contentEncoding": "base64"},
        },
        "required": ["name", "data"],
        "additionalProperties": False,
    }


def to_form(fields: "Mapping[str, Any] | Field | Iterable[Field] | None") -> Mapping[str, Any] | None:
    """Return a form as JSON Schema of an object. A schema and None are returned unchanged.

    Raises:
        ConfigurationError: The value is neither a schema nor fields, or two fields have the same name.
    """
    if fields is None or isinstance(fields, Mapping):
        return fields
    given = (fields,) if isinstance(fields, Field) or not isinstance(fields, Iterable) else tuple(fields)
    found = _parse_form_fields(given)
    return {
        "type": "object",
        "properties": {field.name: dict(field.member) for field in found},
        "required": [field.name for field in found if field.required],
        "additionalProperties": False,
    }


def _parse_form_fields(given: tuple[object, ...]) -> list[Field]:
    found = [each for each in given if isinstance(each, Field)]
    if len(found) < len(given) or not found:
        raise ConfigurationError(
            f"form= must be a JSON Schema, or Field objects of actgent.forms, not {given!r:.200}"
        )
    names = [field.name for field in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"form= has two fields with the name {name!r}: rename one of them")
    return found


# --- reading forms -----------------------------------------------------------------------


@attrs.frozen(repr=False)
class Asked(FieldRepr):
    """Display properties of one form field, taken from the JSON Schema of the form."""

    name: str
    """Name of the property that holds the value."""
    kind: FieldKind
    """Kind of the field, given or derived from the type."""
    label: str
    """Label to display next to the field."""
    help: str
    """Help text to display; empty for none."""
    is_required: bool
    """True if a value is required."""
    options: Sequence[str]
    """Values to choose from; empty for other kinds than `select` and `multiselect`."""
    default: Any
    """Initial value of the field; None leaves the field empty."""
    is_whole: bool
    """True if the number must be an integer."""


def fields_of(form: Mapping[str, Any] | None) -> tuple[Asked, ...]:
    """Return the display properties of the fields of a form.

    The result is empty if the form is not an object schema; clients then ask for JSON text.
    """
    members = (form or {}).get("properties")
    if not isinstance(members, Mapping):
        return ()
    required = (form or {}).get("required", ())
    return tuple(
        _to_field(name, member, is_required=name in required)
        for name, member in members.items()
        if isinstance(member, Mapping)
    )


def _to_field(name: str, member: Mapping[str, Any], *, is_required: bool) -> Asked:
    items = member.get("items")
    inner = items if isinstance(items, Mapping) else member
    options = inner.get("enum", ())
    return Asked(
        name=name,
        kind=_kind(member, options),
        label=str(member.get("title") or name),
        help=str(member.get("description") or ""),
        is_required=is_required,
        options=tuple(str(each) for each in options) if isinstance(options, Sequence) else (),
        default=member.get("default"),
        is_whole=member.get("type") == "integer",
    )


def _kind(member: Mapping[str, Any], options: object) -> FieldKind:
    named = member.get(INPUT)
    if named in KINDS:
        return named  # type: ignore[no-any-return]
    written = member.get("type")
    if written == "string" or (written is None and options):
        found: FieldKind = _BY_FORMAT.get(str(member.get("format")), "text")
        return "select" if options else found
    if written == "array":
        return "multiselect" if options else "custom"
    return _BY_TYPE.get(str(written), "custom")


_BY_FORMAT: Mapping[str, FieldKind] = {"date": "date", "date-time": "datetime"}
_BY_TYPE: Mapping[str, FieldKind] = {"boolean": "boolean", "number": "number", "integer": "number"}


def form_misfit(form: Mapping[str, Any] | None, content: object) -> str | None:
    """Return the error of a form value that JSON Schema cannot detect: an impossible date or invalid base64. None if valid."""
    if not isinstance(content, Mapping):
        return None
    for field in fields_of(form):
        value = content.get(field.name)
        if value is not None and (reason := value_misfit(field.kind, value)):
            return f"{field.name}: {reason}"
    return None


def value_misfit(kind: FieldKind, value: object) -> str | None:
    """Return the error of one field value that JSON Schema cannot detect: an impossible date or invalid base64. None if valid."""
    check = _CHECKS.get(kind)
    return None if check is None else check(value)


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATETIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
"""Pattern of RFC 3339 times; Python's parser also accepts week dates, for example. Seconds may be omitted."""


def _date_error(value: object) -> str | None:
    if not _is_parsable(date.fromisoformat, _DATE, value):
        return f"{value!r:.50} is no date, e.g. 2027-01-31"
    return None


def _datetime_error(value: object) -> str | None:
    if not _is_parsable(datetime.fromisoformat, _DATETIME, value):
        return f"{value!r:.50} is no date and time with a zone, e.g. 2027-01-31T09:30:00Z"
    return None


def _is_parsable(parse: Callable[[str], object], pattern: re.Pattern[str], value: object) -> bool:
    """Return True if the value is a text that matches `pattern`, and `parse` accepts it, so that the date or time exists."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        return False
    try:
        parse(value.upper())
    except ValueError:
        return False
    return True


def _file_error(value: object) -> str | None:
    try:
        base64.b64decode(str(value.get("data", "")) if isinstance(value, Mapping) else "", validate=True)
    except (binascii.Error, ValueError):
        return "data is base64 (RFC 4648)"
    return None


_CHECKS: Mapping[str, Callable[[object], str | None]] = {
    "date": _date_error,
    "datetime": _datetime_error,
    "file": _file_error,
}
