"""`actgent pipeline`: run, resume, show, check and draw pipelines from files."""

import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from actgent.agents.agent import Agent
from actgent.agents.bare_agent import BareAgent
from actgent.agents.pipelines import Pipeline, PipelineResult, read_definition
from actgent.cli.journals.journal_commands import SingleSessionJournal, load, open_or_create, open_read_only
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.errors.text_escaping import counted
from actgent.llm.scripted_model import ScriptedLLM
from actgent.runtime.runtime import open_runtime
from actgent.sessions.restore.session_loader import rebuild
from actgent.tools.outputs.result_text import to_text

from .agent_folders import agents_at
from .agents_in_python_files import load_values
from .command_options import PipelineOptions, to_limits
from .terminal_io import Terminal

_INVALID_EXIT_CODE = 2


# --- commands --------------------------------------------------------------------------------


async def run_pipeline(options: PipelineOptions, terminal: Terminal) -> int:
    """Start a pipeline run, or join the run with this id, and print its result. Return 0 if it succeeds, else 1."""
    pipeline, inputs = _load(options), _parse_inputs(options)
    if options.journal is None:
        if options.run is not None:
            raise ConfigurationError("--run requires --journal FILE, the journal that stores the run")
        async with pipeline:
            return _show(
                pipeline,
                await pipeline.process(inputs, limits=to_limits(options.limit_options)),
                options,
                terminal,
            )
    run = options.run or secrets.token_hex(4)
    terminal.notice(f"run {run}")
    async with _open_runtime(pipeline, options.journal, run):
        result = await pipeline.process(
            inputs or None, session_id=run, limits=to_limits(options.limit_options)
        )
    return _show(pipeline, result, options, terminal)


async def resume_run(options: PipelineOptions, terminal: Terminal, *, steps: Sequence[str]) -> int:
    """Resume an unfinished pipeline run, or run failed and missing steps again. Return 0 if the run succeeds, else 1.

    Args:
        options: The pipeline, journal and run id.
        terminal: Output of the command.
        steps: Names of the steps to run again, with all steps that depend on them.
    """
    pipeline, run = _load(options), options.run or ""
    async with _open_runtime(pipeline, _required_journal(options), run) as is_unfinished:
        if is_unfinished and not steps:
            result = await pipeline.process(session_id=run)
        else:
            result = await pipeline.retry(run, *steps, limits=to_limits(options.limit_options))
    return _show(pipeline, result, options, terminal)


async def show_run(options: PipelineOptions, terminal: Terminal) -> int:
    """Print the state of the steps of a pipeline run from the journal, which other processes may be using."""
    pipeline, run = _load(options, needs_agents=False), options.run or ""
    async with open_read_only(_required_journal(options)) as journal:
        rebuilt = await rebuild(await load(journal, run, pipeline.name))
    result = pipeline.result_in(rebuilt.state, run, usage=rebuilt.usage)
    _show(pipeline, result, options, terminal)
    return 0


def draw_pipeline(options: PipelineOptions, terminal: Terminal, *, mermaid: bool) -> int:
    """Print a pipeline as a text diagram, or as a Mermaid flowchart if `mermaid` is True."""
    pipeline = _load(options, needs_agents=False)
    terminal.write(pipeline.to_mermaid() if mermaid else pipeline.draw())
    return 0


def check_pipeline(options: PipelineOptions, terminal: Terminal) -> int:
    """Print a summary of a pipeline, or all its errors. Return 2 if it has errors, else 0."""
    try:
        pipeline = _load(options, needs_agents=False)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            terminal.report_error(line)
        return _INVALID_EXIT_CODE
    inputs = ", ".join(pipeline.inputs) or "none"
    terminal.line(
        f"{options.file}: pipeline {pipeline.name!r} is fine "
        f"({counted(len(pipeline.steps), 'step')} in {counted(len(pipeline.groups), 'group')}; inputs: {inputs})"
    )
    return 0


# --- loading -----------------------------------------------------------------------------------


def _load(options: PipelineOptions, *, needs_agents: bool = True) -> Pipeline:
    """Load the pipeline of the file in the options. `needs_agents=False` replaces missing agents by placeholders."""
    path, _, name = options.file.partition(":")
    if Path(path).suffix == ".py" or name:
        return _pipeline_in_file(path, name)
    if options.agents is None and not needs_agents:
        return Pipeline.load(path, agents=_placeholder_agents(path), llm=ScriptedLLM([]))
    agents = [] if options.agents is None else agents_at(options.agents)
    return Pipeline.load(path, agents=agents, llm=options.model)


def _pipeline_in_file(path: str, name: str) -> Pipeline:
    found = {key: value for key, value in load_values(path).items() if isinstance(value, Pipeline)}
    if name in found:
        return found[name]
    if not found:
        raise ConfigurationError(
            f"{path} defines no pipeline at its top level: write `pipeline = Pipeline(...)` there"
        )
    if name or len({id(each) for each in found.values()}) != 1:
        meant = did_you_mean_or_list(name, found) if name else f"it defines {', '.join(found)}"
        raise ConfigurationError(f"{path} defines several pipelines: choose one with {path}:NAME; {meant}")
    return next(iter(found.values()))


def _placeholder_agents(path: str) -> list[Agent[Any, Any]]:
    """Return agents with the names that a pipeline file uses, for commands that run no step."""
    steps = read_definition(path).get("steps")
    each = steps.values() if isinstance(steps, Mapping) else ()
    names = [
        step["agent"] for step in each if isinstance(step, Mapping) and isinstance(step.get("agent"), str)
    ]
    return [BareAgent(name, llm=ScriptedLLM([])) for name in dict.fromkeys(names)]


def _parse_inputs(options: PipelineOptions) -> dict[str, Any]:
    try:
        inputs = json.loads(options.inputs or "{}")
    except ValueError as error:
        raise ConfigurationError(
            f'--inputs must be a JSON object, such as \'{{"topic": "tea"}}\': {error}'
        ) from None
    if not isinstance(inputs, dict):
        raise ConfigurationError(f"--inputs must be a JSON object, not {options.inputs!r:.100}")
    for document in options.values:
        name, sign, value = document.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"--input must be NAME=VALUE, not {document!r:.100}")
        inputs[name] = value
    return inputs


def _required_journal(options: PipelineOptions) -> str:
    if options.journal is None:
        raise ConfigurationError("the journal that stores the run is missing: pass --journal FILE")
    return options.journal


@asynccontextmanager
async def _open_runtime(pipeline: Pipeline, location: str, run: str) -> AsyncGenerator[bool, None]:
    """Start a pipeline with the journal at `location`, without resuming other runs.

    Yield True if the run with the id `run` is unfinished.
    """
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_or_create(location))
        is_unfinished = run in await journal.unfinished(pipeline.name)
        runtime = await stack.enter_async_context(open_runtime(journal=SingleSessionJournal(journal, run)))
        await runtime.start(pipeline)
        yield is_unfinished


# --- output ------------------------------------------------------------------------------------


def _show(pipeline: Pipeline, result: PipelineResult, options: PipelineOptions, terminal: Terminal) -> int:
    if options.json:
        steps = {
            name: {**each.to_data(), "status": each.status, "output": _to_json_value(each.output)}
            for name, each in result.steps.items()
        }
        document = {
            "run": result.session_id,
            "status": result.status,
            "data": _to_json_value(result.data),
            "steps": steps,
        }
        terminal.json_line(json.dumps(document, ensure_ascii=False))
    else:
        terminal.write(pipeline.draw(result))
        terminal.line()
        terminal.line(f"{result.status}: {result.text}" if result.text else result.status)
    return 0 if result.status == "success" else 1


def _to_json_value(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.loads(to_text(value))
