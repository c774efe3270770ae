"""`actgent pipeline`: pipelines in files, run, looked at, gone on with, checked and drawn."""

import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from actgent.agents.agent import Agent
from actgent.agents.pipelines import Pipeline, PipelineResult, read_definition
from actgent.agents.presets import BareAgent
from actgent.cli.folders import agents_at
from actgent.cli.journals.journal import OneAwake, load, looked_at
from actgent.cli.programs import load_values
from actgent.cli.terminal import Terminal
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, nearest
from actgent.errors.printable import counted
from actgent.journal.opening import open_journal
from actgent.llm.scripted import ScriptedLLM
from actgent.runtime.runtime import open_runtime
from actgent.sessions.restore import rebuild
from actgent.tools.outputs.results import to_text

_WRONG = 2


@attrs.frozen(kw_only=True)
class PipelineOptions:
    """What the commands of `actgent pipeline` were told."""

    file: str
    agents: str | None = None
    model: str | None = None
    journal: str | None = None
    run: str | None = None
    inputs: str | None = None
    values: Sequence[str] = ()
    """`NAME=VALUE`, for inputs that are texts."""
    limits: Limits | None = None
    json: bool = False


# --- commands --------------------------------------------------------------------------------


async def run_pipeline(options: PipelineOptions, terminal: Terminal) -> int:
    """Run it, or join the run of this id; 1 unless all that was wanted is done."""
    pipeline, inputs = _load(options), _inputs_of(options)
    if options.journal is None:
        if options.run is not None:
            raise ConfigurationError("--run goes with --journal: name the file that keeps the run")
        async with pipeline:
            return _show(pipeline, await pipeline.process(inputs, limits=options.limits), options, terminal)
    run = options.run or secrets.token_hex(4)
    terminal.notice(f"run {run}")
    async with _started(pipeline, options.journal, run):
        result = await pipeline.process(inputs or None, session_id=run, limits=options.limits)
    return _show(pipeline, result, options, terminal)


async def resume_run(options: PipelineOptions, terminal: Terminal, *, steps: Sequence[str]) -> int:
    """Go on with a run: where its process left it, or from steps, or with all that is missing; 1 unless that is done."""
    pipeline, run = _load(options), options.run or ""
    async with _started(pipeline, _journal_of(options), run) as is_at_work:
        if is_at_work and not steps:
            result = await pipeline.process(session_id=run)
        else:
            result = await pipeline.retry(run, *steps, limits=options.limits)
    return _show(pipeline, result, options, terminal)


async def show_run(options: PipelineOptions, terminal: Terminal) -> int:
    """Show what the steps of a run came to so far; an agent may be using the journal."""
    pipeline, run = _load(options, is_run=False), options.run or ""
    async with looked_at(_journal_of(options)) as journal:
        rebuilt = await rebuild(await load(journal, run, pipeline.name))
    result = pipeline.result_in(rebuilt.state, run, usage=rebuilt.usage)
    _show(pipeline, result, options, terminal)
    return 0


def draw_pipeline(options: PipelineOptions, terminal: Terminal, *, mermaid: bool) -> int:
    """Draw it for a terminal, or as Mermaid."""
    pipeline = _load(options, is_run=False)
    terminal.write(pipeline.to_mermaid() if mermaid else pipeline.draw())
    return 0


def check_pipeline(options: PipelineOptions, terminal: Terminal) -> int:
    """Say what a pipeline holds, or all that is wrong with it; 2 if something is."""
    try:
        pipeline = _load(options, is_run=False)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            terminal.complain(line)
        return _WRONG
    inputs = ", ".join(pipeline.inputs) or "none"
    terminal.line(
        f"{options.file}: pipeline {pipeline.name!r} is fine "
        f"({counted(len(pipeline.steps), 'step')} in {counted(len(pipeline.groups), 'group')}; inputs: {inputs})"
    )
    return 0


# --- what is run -------------------------------------------------------------------------------


def _load(options: PipelineOptions, *, is_run: bool = True) -> Pipeline:
    """The pipeline of a file; one that is not to run needs no agents."""
    path, _, name = options.file.partition(":")
    if Path(path).suffix == ".py" or name:
        return _in_program(path, name)
    if options.agents is None and not is_run:
        return Pipeline.load(path, agents=_stand_ins(path), llm=ScriptedLLM([]))
    agents = [] if options.agents is None else agents_at(options.agents)
    return Pipeline.load(path, agents=agents, llm=options.model)


def _in_program(path: str, name: str) -> Pipeline:
    found = {key: value for key, value in load_values(path).items() if isinstance(value, Pipeline)}
    if name in found:
        return found[name]
    if not found:
        raise ConfigurationError(
            f"{path} defines no pipeline at its top level: write `pipeline = Pipeline(...)` there"
        )
    if name or len({id(each) for each in found.values()}) != 1:
        meant = nearest(name, found) if name else f"it defines {', '.join(found)}"
        raise ConfigurationError(f"say which pipeline of {path} you mean, as {path}:NAME; {meant}")
    return next(iter(found.values()))


def _stand_ins(path: str) -> list[Agent[Any, Any]]:
    """Agents of the names in a file that only is looked at."""
    steps = read_definition(path).get("steps")
    each = steps.values() if isinstance(steps, Mapping) else ()
    names = [
        step["agent"] for step in each if isinstance(step, Mapping) and isinstance(step.get("agent"), str)
    ]
    return [BareAgent(name, llm=ScriptedLLM([])) for name in dict.fromkeys(names)]


def _inputs_of(options: PipelineOptions) -> dict[str, Any]:
    try:
        given = json.loads(options.inputs or "{}")
    except ValueError as error:
        raise ConfigurationError(
            f'--inputs is a JSON object, such as \'{{"topic": "tea"}}\': {error}'
        ) from None
    if not isinstance(given, dict):
        raise ConfigurationError(f"--inputs is a JSON object, not {options.inputs!r:.100}")
    for said in options.values:
        name, sign, value = said.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"--input is NAME=VALUE, not {said!r:.100}")
        given[name] = value
    return given


def _journal_of(options: PipelineOptions) -> str:
    if options.journal is None:
        raise ConfigurationError("name the journal of the run: --journal FILE")
    return options.journal


@asynccontextmanager
async def _started(pipeline: Pipeline, place: str, run: str) -> AsyncGenerator[bool, None]:
    """A pipeline at work over a journal in which other runs are left asleep; tells whether this run was in the middle."""
    async with AsyncExitStack() as stack:
        url = place if "://" in place else f"sqlite:///{place}"
        journal = await stack.enter_async_context(open_journal(url))
        await journal.acquire()
        is_at_work = run in await journal.unfinished(pipeline.name)
        runtime = await stack.enter_async_context(open_runtime(journal=OneAwake(journal, run)))
        await runtime.start(pipeline)
        yield is_at_work


# --- what is shown -----------------------------------------------------------------------------


def _show(pipeline: Pipeline, result: PipelineResult, options: PipelineOptions, terminal: Terminal) -> int:
    if options.json:
        steps = {
            name: {**each.to_data(), "status": each.status, "output": _plain(each.output)}
            for name, each in result.steps.items()
        }
        said = {
            "run": result.session_id,
            "status": result.status,
            "data": _plain(result.data),
            "steps": steps,
        }
        terminal.raw(json.dumps(said, ensure_ascii=False))
    else:
        terminal.write(pipeline.draw(result))
        terminal.line()
        terminal.line(f"{result.status}: {result.text}" if result.text else result.status)
    return 0 if result.status == "success" else 1


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.loads(to_text(value))
