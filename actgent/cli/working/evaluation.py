"""`actgent eval`: cases run side by side for models and prompts, and cases made from journals."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text as Cell

from actgent.agents.agent import Agent
from actgent.agents.builder import AgentBuilder
from actgent.agents.presets import BareAgent
from actgent.cli.folders import is_folder, load_folder
from actgent.cli.journals.journal import looked_at
from actgent.cli.models import live_models, open_models
from actgent.cli.programs import load_values
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.evaluation import (
    Case,
    Report,
    Trial,
    cases_from_journal,
    evaluate,
    load_cases,
    save_cases,
    to_html,
)
from actgent.evaluation.page import cost_words, time_words
from actgent.llm.base import LLM

_COLUMNS = ("", "passed", "score", "tokens in", "tokens out", "cost", "p50", "p95")
_SMALL = '{"input": "Hi, I am Ada.", "contains": "Ada"}, or in Python Case(input=..., expected=...)'
SHOWN = 20
"""Runs that have not passed, which are told of one by one."""


@attrs.frozen(kw_only=True)
class EvalOptions:
    """What `actgent eval` was told."""

    cases: str
    agent: str | None = None
    models: Sequence[str] = ()
    prompts: Sequence[str] = ()
    runs: int = 1
    concurrency: int = 8
    judge: str | None = None
    names: Sequence[str] = ()
    """Parts of the names of the cases to run; empty is all."""
    json: str | None = None
    html: str | None = None
    threshold: float = 1.0
    offline: bool = False


async def run_evaluation(options: EvalOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Run the cases and report; 1 if fewer passed than the threshold, or not all were run."""
    _check_targets(options)
    cases, variants = _cases_and_variants(options)
    trials: list[Trial] = []
    async with AsyncExitStack() as stack:
        if variants is None:
            variants = await _make_variants(options, stack)
        bar = await stack.enter_async_context(_progress(terminal, len(cases) * len(variants) * options.runs))
        judge = await _judge(options, stack)

        def note(trial: Trial) -> None:
            trials.append(trial)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=len(trials), refresh=True)

        with shutdown.waiting():
            await evaluate(
                cases,
                variants,
                runs=options.runs,
                concurrency=options.concurrency,
                judge=judge,
                on_trial=note,
            )
    report = Report.of(trials, cases, list(variants))
    _show(report, terminal, wanted=len(cases) * len(variants) * options.runs)
    _write(report, options, terminal)
    is_whole = len(trials) == len(cases) * len(variants) * options.runs
    return 0 if is_whole and report.meets(options.threshold) else 1


async def make_cases(
    journal: str, target: str, terminal: Terminal, *, agent: str | None, session: str | None, limit: int
) -> int:
    """Write cases from the sessions of a journal, which may be in use."""
    async with looked_at(journal) as opened:
        cases = await cases_from_journal(opened, agent=agent, session=session, limit=limit)
    if not cases:
        raise ConfigurationError(
            "the journal has no answered sessions of this kind: `actgent inspect` lists them"
        )
    save_cases(Path(target), cases)
    terminal.line(
        f"{target}: {counted(len(cases), 'case')}; read each before you trust it: what was said need not be right"
    )
    return 0


def _check_targets(options: EvalOptions) -> None:
    """Refuse files that cannot be made before anything is paid for."""
    for place in filter(None, (options.json, options.html)):
        if not Path(place).absolute().parent.is_dir():
            raise ConfigurationError(f"{place} cannot be written: there is no such folder")


# --- what is run -------------------------------------------------------------------------


def _cases_and_variants(options: EvalOptions) -> tuple[list[Case], Mapping[str, Any] | None]:
    """The cases, and who answers them where a Python file says so."""
    variants: Mapping[str, Any] | None = None
    if Path(options.cases).suffix == ".py":
        values = load_values(options.cases)
        cases = values.get("cases")
        if not isinstance(cases, list | tuple) or not all(isinstance(each, Case) for each in cases):
            raise ConfigurationError(f"{options.cases} defines no cases: write `cases = [Case(...), ...]`")
        found, variants = list(cases), _variants_in(values, options)
    else:
        found = load_cases(options.cases)
    if not found:
        raise ConfigurationError(f"{options.cases} has no cases: write one, such as {_SMALL}")
    wanted = [
        case
        for case in found
        if not options.names
        or any(name in (case.title, *case.tags) or name in case.title for name in options.names)
    ]
    if not wanted:
        raise ConfigurationError(
            f"no case is called {options.names[0]!r}; there are: {', '.join(c.title for c in found)}"
        )
    return wanted, variants


def _variants_in(values: Mapping[str, object], options: EvalOptions) -> Mapping[str, Any] | None:
    variants = values.get("variants")
    if isinstance(variants, Mapping) and variants:
        named: Mapping[str, Any] = variants
    elif isinstance(agent := values.get("agent"), Agent):
        named = {agent.name: agent}
    elif callable(agent):
        named = {"agent": agent}
    else:
        return None
    if options.agent or options.models or options.prompts or options.offline:
        raise ConfigurationError(
            f"{options.cases} says itself who answers: leave out --agent, --model, --prompt and --offline, or its `variants`"
        )
    return named


async def _make_variants(options: EvalOptions, stack: AsyncExitStack) -> Mapping[str, Any]:
    """One agent for each model with each prompt."""
    place = options.agent or (options.cases if is_folder(options.cases) else None)
    prompts = {Path(each).stem: _text(each) for each in options.prompts} or {"": ""}
    models: Sequence[str] = options.models
    if place is not None and not is_folder(place):
        _check_there(place)
        if models or options.prompts or options.offline:
            raise ConfigurationError(
                f"{place} names its own model and prompt: --model, --prompt and --offline are for folders"
            )
        agent = _agent_in(place)
        return {agent.name: agent}
    if options.offline:
        return _offline(place)
    if place is not None and not models:
        return {
            prompt or load_folder(place).name: _of_folder(place, None, text)
            for prompt, text in prompts.items()
        }
    names = models or live_models(None, otherwise="name an agent's folder with --agent")[:1]
    clients = await stack.enter_async_context(open_models(names))
    return {
        " / ".join(filter(None, (name, prompt))): _of_folder(place, client, text)
        for name, client in zip(names, clients, strict=True)
        for prompt, text in prompts.items()
    }


def _check_there(place: str) -> None:
    if not Path(place).exists():
        raise ConfigurationError(
            f"no such file or folder: {place}; name an agent's folder, or a Python file with an agent"
        )


def _agent_in(place: str) -> Agent:
    agents = [value for value in load_values(place).values() if isinstance(value, Agent)]
    if len({id(agent) for agent in agents}) != 1:
        raise ConfigurationError(f"{place} defines {len(agents)} agents at its top level: one is wanted")
    return agents[0]


def _offline(place: str | None) -> Mapping[str, Any]:
    if place is None:
        raise ConfigurationError("--offline stands in for the model of a folder: name one with --agent")
    agent = load_folder(place, offline=True)
    return {agent.name: agent}


def _of_folder(place: str | None, model: LLM | None, prompt: str) -> Agent:
    """The agent of a folder, or a plain one, with a model and a prompt of its own."""
    if place is None:
        return BareAgent("assistant", llm=model or "", system_prompt=prompt or None)
    if not prompt and model is None:
        return load_folder(place)
    builder = AgentBuilder.from_folder(place)
    builder = builder if model is None else builder.llm(model)
    return (builder.body(prompt) if prompt else builder).build()


def _text(place: str) -> str:
    try:
        return Path(place).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{place} cannot be read as a prompt: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{place} cannot be read as a prompt: it is not UTF-8") from None


async def _judge(options: EvalOptions, stack: AsyncExitStack) -> LLM | None:
    if options.judge is None:
        return None
    (client,) = await stack.enter_async_context(open_models([options.judge]))
    return client


# --- what is shown -----------------------------------------------------------------------


@asynccontextmanager
async def _progress(terminal: Terminal, total: int) -> AsyncGenerator[Progress | None, None]:
    """A bar for those who look; a pipe gets none."""
    if not terminal.is_live:
        yield None
        return
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal.console, auto_refresh=False, transient=True) as bar:
        bar.add_task("runs", total=total)
        yield bar


def _show(report: Report, terminal: Terminal, *, wanted: int) -> None:
    table = Table(box=box.SIMPLE)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if not number else "right", overflow="fold")
    for variant in report.variants:
        table.add_row(*(Cell(cell) for cell in _cells(report, variant)))
    terminal.console.print(table)
    failed = [trial for trial in report.trials if not trial.passed]
    for trial in failed[:SHOWN]:
        terminal.line(
            f"failed: {one_line(trial.case.title, 60)} ({trial.variant}, run {trial.run}): {_why(trial)}"
        )
    if len(failed) > SHOWN:
        terminal.line(f"... and {len(failed) - SHOWN} more")
    if len(report.trials) < wanted:
        terminal.complain(f"stopped: {len(report.trials)} of {wanted} runs have ended")


def _cells(report: Report, variant: str) -> Sequence[str]:
    row = report.row(variant)
    return (
        one_line(variant, 60),
        f"{row.passed} of {row.trials}",
        f"{row.score:.2f}",
        f"{row.usage.input_tokens:,}",
        f"{row.usage.output_tokens:,}",
        cost_words(row.usage),
        time_words(row.p50),
        time_words(row.p95),
    )


def _why(trial: Trial) -> str:
    if trial.error:
        return one_line(trial.error, 200)
    return one_line(
        "; ".join(f"{each.name}: {each.reason or 'failed'}" for each in trial.results if not each.passed),
        200,
    )


def _write(report: Report, options: EvalOptions, terminal: Terminal) -> None:
    if options.json is not None:
        _save(Path(options.json), report.to_json())
    if options.html is not None:
        _save(Path(options.html), to_html(report, title=f"Evaluation of {Path(options.cases).name}"))
        terminal.line(f"{options.html}: all runs with their answers", style="dim")


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
