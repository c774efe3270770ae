"""Evaluation cases in files: markdown (one case per file), JSON lines, or JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actgent.definitions.front_matter import split_front_matter
from actgent.errors import ConfigurationError
from actgent.information_flow_labels import Label
from actgent.limits_and_schedules.limits import Limits
from actgent.support.strict_json import load_document

from .cases_and_results import Case, Check
from .predefined_checks import calls, calls_no_tool, contains, equals, matches
from .simulated_user import SimulatedUser

KEYS = (
    "name",
    "input",
    "user",
    "expected",
    "contains",
    "matches",
    "equals",
    "calls",
    "judge",
    "limits",
    "timeout",
    "tags",
    "sources",
    "readers",
    "session",
)
"""Keys of a case in a file. `sources` and `readers` are the label of the input. `session` names the recorded session of the case; runs ignore it."""
_USER = ("goal", "persona", "opening", "llm", "max_turns")
"""Keys of a simulated user in a file."""
TESTS = "tests"
"""Subfolder of an agent folder with its cases."""
SUFFIXES = (".md", ".jsonl", ".json")
"""Suffixes of case files."""
MAX_BYTES = 20_000_000
"""Maximum size of a case file in bytes."""


def load_cases(source: str | Path) -> list[Case]:
    """Load the cases of a file (`.md`, `.jsonl`, `.json`), of a folder of such files, or of an agent folder's `tests`.

    Raises:
        ConfigurationError: The path does not exist, or a case is invalid; the message names file and line.
    """
    path = Path(source)
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise ConfigurationError(
            f"{path} does not exist: name a case file (.md, .jsonl, .json or .py), a folder of case files, or an agent folder"
        )
    match path.suffix:
        case ".md":
            return [_of_markdown(path)]
        case ".jsonl":
            return [
                case_from(parse_case(line, f"{path}:{number}"), location=f"{path}:{number}")
                for number, line in enumerate(read_case_file(path).splitlines(), 1)
                if line.strip()
            ]
        case ".json":
            found = parse_case(read_case_file(path), str(path))
            listed = found if isinstance(found, list) else [found]
            return [
                case_from(each, location=f"{path}, case {number}") for number, each in enumerate(listed, 1)
            ]
    raise ConfigurationError(f"{path} must be a case file with the suffix .md, .jsonl, .json or .py")


def _of_folder(path: Path) -> list[Case]:
    folder = path / TESTS if (path / "brain.md").is_file() else path
    files = sorted(each for each in folder.glob("*") if each.suffix in SUFFIXES)
    if not files:
        raise ConfigurationError(f"{folder} has no cases: add files such as {folder / 'greeting.md'}")
    return [case for file in files for case in load_cases(file)]


def _of_markdown(path: Path) -> Case:
    document = split_front_matter(read_case_file(path), name=str(path))
    found = {"name": path.stem, **document.values}
    if document.body.strip():
        found.setdefault("input", document.body.strip())
    return case_from(found, location=str(path))


def read_case_file(path: Path, *, location: str = "") -> str:
    """Return the text of a file of cases. `location` is the name of the file in errors; empty uses the path.

    Raises:
        ConfigurationError: The file is larger than `MAX_BYTES`, or not UTF-8.
    """
    location = location or str(path)
    if path.stat().st_size > MAX_BYTES:
        raise ConfigurationError(f"{location} must have at most {MAX_BYTES:,} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{location} is not UTF-8: save it as UTF-8") from None


def parse_case(text: str, location: str) -> Any:
    """Parse a line or a file of cases as JSON, and return the value.

    Raises:
        ConfigurationError: The text is not JSON; the error names `location`.
    """
    try:
        return load_document(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{location} is not JSON: {error}") from None


def case_from(value: Any, *, location: str = "the case") -> Case:
    """Create a case from its dictionary in a file.

    Args:
        value: Dictionary of the case.
        location: File and line of the case, for errors.

    Raises:
        ConfigurationError: A key is unknown, or a value is invalid.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{location} must be an object with keys such as input and expected")
    if unknown := [key for key in value if key not in KEYS]:
        raise ConfigurationError(f"{location}: unknown key {unknown[0]!r}; expected one of {', '.join(KEYS)}")
    try:
        return Case(
            input=_texts(value.get("input", ()), "input"),
            name=str(value.get("name") or ""),
            user=_user(value.get("user")),
            expected=value.get("expected"),
            checks=_checks(value),
            judge=str(value.get("judge") or ""),
            limits=Limits(**value["limits"]) if value.get("limits") else None,
            timeout=None if value.get("timeout") is None else float(value["timeout"]),
            tags=_texts(value.get("tags", ()), "tags"),
            label=Label(
                frozenset(_texts(value.get("sources", ()), "sources")),
                None if value.get("readers") is None else frozenset(_texts(value["readers"], "readers")),
            ),
        )
    except re.error as error:
        raise ConfigurationError(
            f"{location}: `matches` is not a valid regular expression: {error}"
        ) from None
    except (ConfigurationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{location}: {error}") from None


def _user(value: Any) -> SimulatedUser | None:
    """Create a simulated user from a goal, or from an object with goal, persona, opening, llm and max_turns.

    Return None for None.
    """
    if value is None or isinstance(value, str):
        return None if value is None else SimulatedUser(value)
    if not isinstance(value, Mapping) or (unknown := [each for each in value if each not in _USER]):
        wrong = f"unknown key {unknown[0]!r}" if isinstance(value, Mapping) else repr(value)[:80]
        raise ConfigurationError(
            f"`user` must be a goal as text, or an object with {', '.join(_USER)}: {wrong}"
        )
    return SimulatedUser(**value)


def _texts(value: Any, key: str) -> tuple[str, ...]:
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        raise ConfigurationError(f"`{key}` must be a string or a list of strings, not {value!r:.80}")
    return tuple(listed)


def _checks(found: Mapping[str, Any]) -> list[Check]:
    made: list[Check] = []
    if "contains" in found:
        made.append(contains(*_texts(found["contains"], "contains")))
    made += [matches(pattern) for pattern in _texts(found.get("matches", ()), "matches")]
    if "equals" in found:
        made.append(equals(found["equals"]))
    if "calls" in found:
        made += _calls(found["calls"])
    return made


def _calls(value: Any) -> list[Check]:
    """Create the checks for the key `calls` of a case, which contains tool names, or names with arguments.

    An empty list checks that no tool is called.
    """
    if isinstance(value, str):
        return [calls(value)]
    if isinstance(value, Mapping):
        return [calls(name, **(arguments or {})) for name, arguments in value.items()]
    names = _texts(value, "calls")
    return [calls(name) for name in names] if names else [calls_no_tool]


def save_cases(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """Write cases to the new file `path` as JSON lines.

    Raises:
        ConfigurationError: The file exists, or a case is invalid.
    """
    for number, case in enumerate(cases, 1):
        case_from(case, location=f"case {number}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(case, ensure_ascii=False)}\n" for case in cases)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists: name a file that does not exist yet") from None
