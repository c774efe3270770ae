"""Form input in the terminal, field by field. Labels and options come from tools, so they are escaped to one line."""

import base64
import math
import mimetypes
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ParseError
from actgent.forms import MAX_FILE_BYTES, Asked, value_misfit
from actgent.support.strict_json import loads

Receive = Callable[[], Awaitable[str | None]]
"""Function that reads one line of user input; returns None at the end of the input."""
YES_WORDS = ("y", "yes", "true", "1")
"""Words that mean true in a boolean field."""
NO_WORDS = ("n", "no", "false", "0")
"""Words that mean false in a boolean field."""
_HINTS: Mapping[str, str] = {
    "boolean": "yes or no",
    "confirm": "yes",
    "number": "a number",
    "date": "e.g. 2027-01-31",
    "datetime": "e.g. 2027-01-31T09:30:00Z",
    "file": "the path of a file",
    "custom": "as JSON",
}
"""Input hint for each kind of field."""


async def fill_form(fields: Sequence[Asked], terminal: Terminal, receive: Receive) -> dict[str, Any] | None:
    """Ask the user for the value of each field, again until it is valid. Return the values by field name.

    Return None if the user cancels with `.`, or if the input ends.
    """
    terminal.line("An empty line skips an optional field; a line with . cancels the form.", style="dim")
    values: dict[str, Any] = {}
    for field in fields:
        while True:
            terminal.write(_question(field), style="bold")
            line = await receive()
            if line is None or line.strip() == ".":
                return None
            try:
                values |= await _read_member(field, line.strip())
            except ValueError as error:
                terminal.line(f"  {one_line(str(error), 300)}", style="dim")
            else:
                break
    return values


async def _read_member(field: Asked, line: str) -> dict[str, Any]:
    """Parse a line of input as a field's value. Return name and value, or an empty dict for an empty optional field."""
    if line or (field.is_required and field.default is None):
        return {field.name: await parse_value(field, line)}
    return {} if field.default is None else {field.name: field.default}


def _question(field: Asked) -> str:
    """Return the prompt that asks for a field, with its help text, options and default."""
    hint = _HINTS.get(field.kind, "")
    if field.options:
        numbered = [f"{number}={one_line(each, 60)}" for number, each in enumerate(field.options, 1)]
        more = ", several separated by commas" if field.kind == "multiselect" else ""
        hint = ", ".join(numbered) + more
    about = [each for each in (one_line(field.help, 200), hint) if each]
    if field.default is not None:
        about.append(f"default {one_line(str(field.default), 60)}")
    elif not field.is_required:
        about.append("optional")
    words = "; ".join(about)
    return f"  {one_line(field.label, 100)} ({words}): " if words else f"  {one_line(field.label, 100)}: "


async def parse_value(field: Asked, line: str) -> Any:
    """Parse a line of input as the value of a field. For a `file` field, read the file whose path is in the line.

    Raises:
        ValueError: The line is not a valid value; the message explains why.
    """
    read = _PARSERS.get(field.kind)
    value = await _read_file(line) if field.kind == "file" else line if read is None else read(field, line)
    if reason := value_misfit(field.kind, value):
        raise ValueError(reason)
    return value


def _parse_boolean(_: Asked, line: str) -> bool:
    if line.lower() in YES_WORDS:
        return True
    if line.lower() in NO_WORDS:
        return False
    raise ValueError("the answer must be yes or no")


def _parse_number(field: Asked, line: str) -> float:
    is_whole = field.is_whole
    try:
        number = int(line) if is_whole or line.lstrip("+-").isdigit() else float(line)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{line[:50]!r} must be a {'whole ' if is_whole else ''}number")
    return number


def _parse_json(_: Asked, line: str) -> Any:
    try:
        return loads(line)
    except ParseError as error:
        raise ValueError(error.reason) from None


def _parse_option(field: Asked, line: str) -> str:
    """Return the field's option with the number or text in the line. Raise `ValueError` if no option matches."""
    options = field.options
    if line in options:
        return line
    numbered = {str(number): option for number, option in enumerate(options, 1)}
    if (chosen := numbered.get(line.lstrip("0"))) is not None:
        return chosen
    raise ValueError(f"{line[:50]!r} is not one of the options: enter the number or text of a listed option")


async def _read_file(line: str) -> dict[str, str]:
    try:
        path = await trio.Path(line).expanduser()
        found = await path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{line[:100]} must be the path of an existing file")
        if found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"{line[:100]} must have at most {MAX_FILE_BYTES:,} bytes")
        data = await path.read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder of `~user` is unknown
        raise ValueError(f"{line[:100]} cannot be read: {getattr(error, 'strerror', error)}") from None
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return {"name": path.name, "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}


_PARSERS: Mapping[str, Callable[[Asked, str], Any]] = {
    "boolean": _parse_boolean,
    "confirm": _parse_boolean,
    "number": _parse_number,
    "select": _parse_option,
    "multiselect": lambda field, line: [_parse_option(field, each.strip()) for each in line.split(",")],
    "custom": _parse_json,
}
"""Parser for each kind of field; other kinds take the line as text."""
