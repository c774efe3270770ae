"""`actgent goal`: works towards one goal with the tools of files, and prints what came of it."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from actgent.agents.goal import GoalResult, run_agent
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder
from actgent.llm.settings import LLMSettings, load_models, load_settings
from actgent.protocols.goal import Goal
from actgent.support.strict_json import load_document
from actgent.tools.base import Tool
from actgent.tools.outputs.results import to_text
from actgent.toolsets.discovery import discover, load_files, output_in
from actgent.toolsets.toolset import Toolset

from .models import live_models
from .signals import Shutdown
from .terminal import Terminal

_PROGRESS = ("] decides: ", "] calls ", "] ended: ")
"""What of the lines that tell of the work is shown to somebody who waits, without --verbose."""


@attrs.frozen(kw_only=True)
class GoalOptions:
    """What `actgent goal` was told."""

    goal: str
    tools: Sequence[str] = ()
    """Python files of tools."""
    search: Sequence[str] = ()
    """Folders in which files of tools, and of the form of the answer, are looked for."""
    recursive: bool = True
    output: str | None = None
    """A Python file with `output_schema`, or a JSON file with a schema."""
    model: str | None = None
    base_url: str | None = None
    max_iterations: int = 20
    limits: Limits | None = None
    verbose: bool = False
    json: bool = False


async def work(options: GoalOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Work until the goal is achieved or given up; 1 if it was not achieved.

    The first signal stops the work, and closes what was opened for it.
    """
    if not options.goal.strip():
        raise ConfigurationError('say the goal: actgent goal "find the deepest lake" --tools lakes.tools.py')
    # What files of tools register, such as a provider, is there when the model is named.
    given: dict[str, Any] = {
        "tools": _tools(options),
        "output": _output(options),
        "models": load_models(Goal.roles),
    }
    bounds: dict[str, Any] = {"max_iterations": options.max_iterations, "limits": options.limits}
    told = _teller(options, terminal) or False
    result: GoalResult[Any] | None = None
    with shutdown.waiting():
        result = await run_agent(options.goal, _settings(options), **given, **bounds, verbose=told)
    if result is None:
        terminal.complain("stopped before the goal was achieved")
        return 1
    _show(result, options, terminal)
    return 0 if result.achieved else 1


def _teller(options: GoalOptions, terminal: Terminal) -> Any:
    """What takes the lines that tell of the work; None where nobody wants them."""
    if options.verbose:
        return terminal.notice
    if not terminal.is_live or options.json:
        return None
    return lambda line: terminal.notice(line) if any(word in line for word in _PROGRESS) else None


def _show(result: GoalResult[Any], options: GoalOptions, terminal: Terminal) -> None:
    has_data = result.data is not None and not isinstance(result.data, str)
    if options.json:
        data = json.loads(to_text(result.data)) if has_data else result.data
        terminal.raw(json.dumps({**_figures(result), "data": data}, ensure_ascii=False))
        return
    terminal.line(to_text(result.data) if has_data else result.text)
    if result.error:
        terminal.complain(f"{result.status}: {result.error}")


def _figures(result: GoalResult[Any]) -> dict[str, Any]:
    names = ("status", "achieved", "text", "error", "iterations", "used_tools")
    shown = {name: getattr(result, name) for name in names}
    if (metrics := result.metrics) is not None:
        shown |= {"seconds": round(metrics.seconds, 3), "tokens": metrics.tokens, "cost": metrics.cost}
    return shown


# --- what it works with ------------------------------------------------------------------------


def _tools(options: GoalOptions) -> list[Tool | Toolset]:
    """The tools of the named files, which have to be there, and those that are found in folders.

    Raises:
        InvalidFolder: a named file cannot be run.
        ConfigurationError: a named file has no tools, or a folder is not there.
    """
    named = load_files(options.tools)
    if named.problems:
        raise InvalidFolder(named.problems)
    files = {place.rpartition(":")[0] or place for place in named.places.values()} | set(
        named.places.values()
    )
    for file in options.tools:
        if str(Path(file)) not in files:
            raise ConfigurationError(
                f"no tools in {file}: they are functions (state, args), functions with @tool, or objects of Tool"
            )
    found = discover(*options.search, recursive=options.recursive)
    taken = {tool.name for tool in named.tools}
    return [*named.tools, *(tool for tool in found.tools if tool.name not in taken)]


def _output(options: GoalOptions) -> Any:
    """The form of the answer: of the named file, else of the first that is found; None where there is none.

    Raises:
        ConfigurationError: the named file is not there, or has no form.
    """
    if options.output is None:
        return output_in(*options.search, recursive=options.recursive)
    path = Path(options.output)
    if path.suffix == ".json":
        try:
            return load_document(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InvalidFile(str(path), getattr(error, "lineno", 1), f"no JSON: {error}") from error
    return output_in(files=[path])


def _settings(options: GoalOptions) -> LLMSettings:
    """The model that works: as named, of LLM_MODEL or TAGENT_MODEL, or the one that there is a key for."""
    named = options.model
    if named is None and not os.environ.get("LLM_MODEL", "").strip():
        named = os.environ.get("TAGENT_MODEL", "").strip() or None
    settings = load_settings(model=named, base_url=options.base_url)
    if settings.model is None:
        found = live_models(None, otherwise="set LLM_MODEL or TAGENT_MODEL")[0]
        settings = load_settings(model=found, base_url=options.base_url)
    return settings
