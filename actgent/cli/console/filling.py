"""A person at the terminal fills in a form, field by field. What is shown of it is data: one line, no control characters."""

import base64
import math
import mimetypes
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ParseError
from actgent.forms import MAX_FILE, Asked, value_misfit
from actgent.support.strict_json import loads

Receive = Callable[[], Awaitable[str | None]]
"""The next line that the person types; None when there is no more."""
YES = ("y", "yes", "true", "1")
NO = ("n", "no", "false", "0")
_HINTS: Mapping[str, str] = {
    "boolean": "yes or no",
    "confirm": "yes",
    "number": "a number",
    "date": "e.g. 2027-01-31",
    "datetime": "e.g. 2027-01-31T09:30:00Z",
    "file": "the path of a file",
    "custom": "as JSON",
}


async def fill_form(asked: Sequence[Asked], terminal: Terminal, receive: Receive) -> dict[str, Any] | None:
    """Ask for each field until what is typed fits its kind; None where there is no more input, or they leave off with `.`."""
    terminal.line("An empty line leaves out what may be left out; a line with . leaves off.", style="dim")
    values: dict[str, Any] = {}
    for field in asked:
        while True:
            terminal.write(_question(field), style="bold")
            line = await receive()
            if line is None or line.strip() == ".":
                return None
            try:
                values |= await _read(field, line.strip())
            except ValueError as error:
                terminal.line(f"  {one_line(str(error), 300)}", style="dim")
            else:
                break
    return values


async def _read(field: Asked, line: str) -> dict[str, Any]:
    """The member of the answer that a line stands for; empty where it leaves it out."""
    if line or (field.is_required and field.default is None):
        return {field.name: await read_value(field, line)}
    return {} if field.default is None else {field.name: field.default}


def _question(field: Asked) -> str:
    hint = _HINTS.get(field.kind, "")
    if field.options:
        numbered = [f"{number}={one_line(each, 60)}" for number, each in enumerate(field.options, 1)]
        more = ", several with commas between them" if field.kind == "multiselect" else ""
        hint = ", ".join(numbered) + more
    about = [each for each in (one_line(field.help, 200), hint) if each]
    if field.default is not None:
        about.append(f"else {one_line(str(field.default), 60)}")
    elif not field.is_required:
        about.append("may be empty")
    words = "; ".join(about)
    return f"  {one_line(field.label, 100)} ({words}): " if words else f"  {one_line(field.label, 100)}: "


async def read_value(field: Asked, line: str) -> Any:
    """The value of a field that a line stands for.

    Raises:
        ValueError: it stands for none; the text says why.
    """
    read = _READERS.get(field.kind)
    value = await _file(line) if field.kind == "file" else line if read is None else read(field, line)
    if reason := value_misfit(field.kind, value):
        raise ValueError(reason)
    return value


def _truth(_: Asked, line: str) -> bool:
    if line.lower() in YES:
        return True
    if line.lower() in NO:
        return False
    raise ValueError("yes or no?")


def _number(field: Asked, line: str) -> float:
    is_whole = field.is_whole
    try:
        number = int(line) if is_whole or line.lstrip("+-").isdigit() else float(line)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{line[:50]!r} is no {'whole ' if is_whole else ''}number")
    return number


def _json(_: Asked, line: str) -> Any:
    try:
        return loads(line)
    except ParseError as error:
        raise ValueError(error.reason) from None


def _chosen(field: Asked, line: str) -> str:
    """One of the options, by its number or its words."""
    options = field.options
    if line in options:
        return line
    numbered = {str(number): option for number, option in enumerate(options, 1)}
    if (chosen := numbered.get(line.lstrip("0"))) is not None:
        return chosen
    raise ValueError(f"{line[:50]!r} is none of them")


async def _file(line: str) -> dict[str, str]:
    try:
        path = await trio.Path(line).expanduser()
        found = await path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{line[:100]} is no file")
        if found.st_size > MAX_FILE:
            raise ValueError(f"{line[:100]} has more than {MAX_FILE:,} bytes")
        data = await path.read_bytes()
    except (OSError, RuntimeError) as error:  # the latter: nobody has that home
        raise ValueError(f"{line[:100]} cannot be read: {getattr(error, 'strerror', error)}") from None
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return {"name": path.name, "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}


_READERS: Mapping[str, Callable[[Asked, str], Any]] = {
    "boolean": _truth,
    "confirm": _truth,
    "number": _number,
    "select": _chosen,
    "multiselect": lambda field, line: [_chosen(field, each.strip()) for each in line.split(",")],
    "custom": _json,
}
