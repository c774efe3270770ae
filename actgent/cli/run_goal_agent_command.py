"""`actgent goal`: work towards one goal with tools from Python files, and print the result."""

import json
import os
from pathlib import Path
from typing import Any

from actgent.agents.goal import GoalResult, run_agent
from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.model_settings import LLMSettings, load_models, load_settings
from actgent.protocols.goal.goal_protocol import Goal
from actgent.support.strict_json import load_document
from actgent.tools.outputs.result_text import to_text
from actgent.tools.tool_interface import Tool
from actgent.toolsets.tool_discovery import discover, load_files, load_output_schema
from actgent.toolsets.toolset import Toolset

from .command_options import GoalOptions
from .model_selection import live_models
from .signal_handling import Shutdown
from .terminal_io import Terminal

_PROGRESS_MARKERS = ("] decides: ", "] calls ", "] ended: ")
"""Parts of log lines that are shown as progress on a terminal without `--verbose`."""


async def work_towards_goal(
    goal: str, options: GoalOptions, terminal: Terminal, shutdown: Shutdown, *, limits: Limits | None
) -> int:
    """Run an agent until its goal is achieved or abandoned, and print the result.

    Return the exit code: 0 if the goal was achieved, else 1. The first signal cancels the run and closes its resources.

    Args:
        goal: Text of the goal.
        options: Options of the command.
        terminal: Output of the command.
        shutdown: State of received signals.
        limits: Limits of the whole run; None sets no limits.

    Raises:
        ConfigurationError: The goal is empty, or a tool file, schema or model is invalid.
    """
    if not goal.strip():
        raise ConfigurationError(
            'the goal is empty: pass it as text, e.g. actgent goal "find the deepest lake" --tools lakes.tools.py'
        )
    # Tool files are executed before the model is resolved, because a tool file may register a provider.
    resources: dict[str, Any] = {
        "tools": _tools(options),
        "output": _output(options),
        "models": load_models(Goal.roles),
    }
    bounds: dict[str, Any] = {"max_iterations": options.max_iterations, "limits": limits}
    verbose = _progress_printer(options, terminal) or False
    result: GoalResult[Any] | None = None
    with shutdown.interruptible():
        result = await run_agent(goal, _settings(options), **resources, **bounds, verbose=verbose)
    if result is None:
        terminal.report_error("stopped before the goal was achieved")
        return 1
    _show(result, options, terminal)
    return 0 if result.achieved else 1


def _progress_printer(options: GoalOptions, terminal: Terminal) -> Any:
    """Return the function that prints progress lines, only the main steps without `--verbose`; None for no progress."""
    if options.verbose:
        return terminal.notice
    if not terminal.is_live or options.json:
        return None
    return lambda line: terminal.notice(line) if any(word in line for word in _PROGRESS_MARKERS) else None


def _show(result: GoalResult[Any], options: GoalOptions, terminal: Terminal) -> None:
    has_data = result.data is not None and not isinstance(result.data, str)
    if options.json:
        data = json.loads(to_text(result.data)) if has_data else result.data
        terminal.json_line(json.dumps({**_result_fields(result), "data": data}, ensure_ascii=False))
        return
    terminal.line(to_text(result.data) if has_data else result.text)
    if result.error:
        terminal.report_error(f"{result.status}: {result.error}")


def _result_fields(result: GoalResult[Any]) -> dict[str, Any]:
    names = ("status", "achieved", "text", "error", "iterations", "used_tools")
    shown = {name: getattr(result, name) for name in names}
    if (metrics := result.metrics) is not None:
        shown |= {"seconds": round(metrics.seconds, 3), "tokens": metrics.tokens, "cost": metrics.cost}
    return shown


# --- what it works with ------------------------------------------------------------------------


def _tools(options: GoalOptions) -> list[Tool | Toolset]:
    """Return the tools of the files in `--tools`, followed by the tools found in the search folders.

    Raises:
        InvalidFolder: A tool file cannot be run.
        ConfigurationError: A tool file defines no tools, or a search folder is missing.
    """
    named = load_files(options.tools)
    if named.problems:
        raise InvalidFolder(named.problems)
    files = {place.rpartition(":")[0] or place for place in named.locations.values()} | set(
        named.locations.values()
    )
    for file in options.tools:
        if str(Path(file)) not in files:
            raise ConfigurationError(
                f"{file} defines no tools: it must define functions (state, args), functions with @tool, or Tool objects"
            )
    found = discover(*options.search_dir, recursive=options.recursive)
    names = {tool.name for tool in named.tools}
    return [*named.tools, *(tool for tool in found.tools if tool.name not in names)]


def _output(options: GoalOptions) -> Any:
    """Return the answer schema of the file in `--output`, or else the first schema found in the search folders.

    Return None if there is no schema.

    Raises:
        ConfigurationError: The file in `--output` is missing or defines no schema.
    """
    if options.output is None:
        return load_output_schema(*options.search_dir, recursive=options.recursive)
    path = Path(options.output)
    if path.suffix == ".json":
        try:
            return load_document(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InvalidFile(
                str(path), getattr(error, "lineno", 1), f"the file must be JSON: {error}"
            ) from error
    return load_output_schema(files=[path])


def _settings(options: GoalOptions) -> LLMSettings:
    """Return the settings of the model that works on the goal.

    They come from `--model`, LLM_MODEL, TAGENT_MODEL, or the default of the environment.
    """
    named = options.model
    if named is None and not os.environ.get("LLM_MODEL", "").strip():
        named = os.environ.get("TAGENT_MODEL", "").strip() or None
    settings = load_settings(model=named, base_url=options.base_url)
    if settings.model is None:
        found = live_models(None, hint="set LLM_MODEL or TAGENT_MODEL")[0]
        settings = load_settings(model=found, base_url=options.base_url)
    return settings
