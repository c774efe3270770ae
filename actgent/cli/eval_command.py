"""`actgent eval`: run cases for several models and prompts, or make cases from the sessions of a journal."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text as Cell

from actgent.agents.agent import Agent
from actgent.agents.agent_builder import AgentBuilder
from actgent.agents.bare_agent import BareAgent
from actgent.cli.journals.journal_commands import open_read_only
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.evaluation import (
    Case,
    Report,
    Trial,
    cases_from_journal,
    evaluate,
    history_folder,
    load_cases,
    save_cases,
    store_report,
    to_html,
)
from actgent.evaluation.shared_html_parts import cost_words, time_words
from actgent.llm.model_interface import LLM

from .agent_folders import is_folder, load_folder
from .agents_in_python_files import load_values
from .command_options import EvalOptions
from .model_selection import live_models, open_models
from .prompt_and_report_files import check_output_files, progress_bar, read_prompts, save_report
from .signal_handling import Shutdown
from .terminal_io import Terminal, one_line

_COLUMNS = ("", "passed", "score", "tokens in", "tokens out", "cost", "p50", "p95")
_EXAMPLE_CASE = '{"input": "Hi, I am Ada.", "contains": "Ada"}, or in Python Case(input=..., expected=...)'
"""Example of a case for error messages."""
MAX_SHOWN = 20
"""Maximum number of failed runs that are listed."""


async def run_evaluation(
    cases_path: str, options: EvalOptions, terminal: Terminal, shutdown: Shutdown
) -> int:
    """Run evaluation cases and report the results.

    Return the exit code: 1 if the share of passed runs is below the threshold, or if a signal ended the evaluation, else 0.

    Raises:
        ConfigurationError: The cases, the agent, or a report path is invalid.
    """
    check_output_files((options.json, options.html))
    if options.history:
        history_folder(Path(cases_path))  # raises before model calls cost money
    cases, variants = _cases_and_variants(cases_path, options)
    trials: list[Trial] = []
    async with AsyncExitStack() as stack:
        if variants is None:
            variants = await _make_variants(cases_path, options, stack)
        bar = await stack.enter_async_context(
            progress_bar(terminal, "runs", len(cases) * len(variants) * options.runs)
        )
        judge = await _judge(options, stack)

        def note(trial: Trial) -> None:
            trials.append(trial)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=len(trials), refresh=True)

        with shutdown.interruptible():
            await evaluate(
                cases,
                variants,
                runs=options.runs,
                concurrency=options.concurrency,
                judge=judge,
                on_trial=note,
            )
    report = Report.of(trials, cases, list(variants))
    _show(report, terminal, total=len(cases) * len(variants) * options.runs)
    _write(report, cases_path, options, terminal)
    is_whole = len(trials) == len(cases) * len(variants) * options.runs
    return 0 if is_whole and report.meets(options.threshold) else 1


async def make_cases(
    journal: str, target: str, terminal: Terminal, *, agent: str | None, session: str | None, limit: int
) -> int:
    """Write a file of evaluation cases that are made from the sessions of a journal. Other processes may use the journal.

    Raises:
        ConfigurationError: The journal has no answered session that matches the arguments.
    """
    async with open_read_only(journal) as opened:
        cases = await cases_from_journal(opened, agent=agent, session=session, limit=limit)
    if not cases:
        raise ConfigurationError(
            "the journal has no answered session that matches the options: list the sessions with `actgent inspect`"
        )
    save_cases(Path(target), cases)
    terminal.line(f"{target}: {counted(len(cases), 'case')}; review each case: recorded answers may be wrong")
    return 0


# --- cases and agents --------------------------------------------------------------------


def _cases_and_variants(cases_path: str, options: EvalOptions) -> tuple[list[Case], Mapping[str, Any] | None]:
    """Return the selected evaluation cases, and the agents that their Python file defines as `variants`.

    The second result is None if the options select the agents.
    """
    variants: Mapping[str, Any] | None = None
    if Path(cases_path).suffix == ".py":
        values = load_values(cases_path)
        cases = values.get("cases")
        if not isinstance(cases, list | tuple) or not all(isinstance(each, Case) for each in cases):
            raise ConfigurationError(
                f"{cases_path} defines no evaluation cases: write `cases = [Case(...), ...]`"
            )
        found, variants = list(cases), _variants_in(values, cases_path, options)
    else:
        found = load_cases(cases_path)
    if not found:
        raise ConfigurationError(f"{cases_path} has no evaluation cases: add one, such as {_EXAMPLE_CASE}")
    total = [
        case
        for case in found
        if not options.case
        or any(name in (case.title, *case.tags) or name in case.title for name in options.case)
    ]
    if not total:
        raise ConfigurationError(
            f"no evaluation case has the name, tag or part of a name {options.case[0]!r}; the names are: {', '.join(c.title for c in found)}"
        )
    return total, variants


def _variants_in(
    values: Mapping[str, object], cases_path: str, options: EvalOptions
) -> Mapping[str, Any] | None:
    variants = values.get("variants")
    if isinstance(variants, Mapping) and variants:
        named: Mapping[str, Any] = variants
    elif isinstance(agent := values.get("agent"), Agent):
        named = {agent.name: agent}
    elif callable(agent):
        named = {"agent": agent}
    else:
        return None
    if options.agent or options.model or options.prompt or options.offline:
        raise ConfigurationError(
            f"{cases_path} defines its own agents: omit --agent, --model, --prompt and --offline, or remove `variants`"
        )
    return named


async def _make_variants(cases_path: str, options: EvalOptions, stack: AsyncExitStack) -> Mapping[str, Any]:
    """Build one agent for each pair of model and prompt in the options, by display name."""
    target = options.agent or (cases_path if is_folder(cases_path) else None)
    prompts = read_prompts(options.prompt)
    models: Sequence[str] = options.model
    if target is not None and not is_folder(target):
        _check_exists(target)
        if models or options.prompt or options.offline:
            raise ConfigurationError(
                f"{target} chooses its own model and prompt: --model, --prompt and --offline work only with agent folders"
            )
        agent = _agent_in(target)
        return {agent.name: agent}
    if options.offline:
        return _offline_variant(target)
    if target is not None and not models:
        return {
            prompt or load_folder(target).name: build_agent(target, None, text)
            for prompt, text in prompts.items()
        }
    names = models or live_models(None, hint="name an agent's folder with --agent")[:1]
    clients = await stack.enter_async_context(open_models(names))
    return {
        " / ".join(filter(None, (name, prompt))): build_agent(target, client, text)
        for name, client in zip(names, clients, strict=True)
        for prompt, text in prompts.items()
    }


def _check_exists(target: str) -> None:
    if not Path(target).exists():
        raise ConfigurationError(
            f"no such file or folder: {target}; pass an agent folder, or a Python file that defines an agent"
        )


def _agent_in(target: str) -> Agent:
    agents = [value for value in load_values(target).values() if isinstance(value, Agent)]
    if len({id(agent) for agent in agents}) != 1:
        raise ConfigurationError(
            f"{target} defines {counted(len(agents), 'agent')} at its top level: expected exactly one"
        )
    return agents[0]


def _offline_variant(target: str | None) -> Mapping[str, Any]:
    if target is None:
        raise ConfigurationError("--offline requires an agent folder: pass it with --agent")
    agent = load_folder(target, offline=True)
    return {agent.name: agent}


def build_agent(target: str | None, model: LLM | None, prompt: str) -> Agent:
    """Build the agent of an agent folder, or a plain agent if `target` is None, with a model and a prompt.

    A model of None and an empty prompt keep those of the folder.
    """
    if target is None:
        return BareAgent("assistant", llm=model or "", system_prompt=prompt or None)
    if not prompt and model is None:
        return load_folder(target)
    builder = AgentBuilder.from_folder(target)
    builder = builder if model is None else builder.llm(model)
    return (builder.body(prompt) if prompt else builder).build()


async def _judge(options: EvalOptions, stack: AsyncExitStack) -> LLM | None:
    if options.judge is None:
        return None
    (client,) = await stack.enter_async_context(open_models([options.judge]))
    return client


# --- output ------------------------------------------------------------------------------


def _show(report: Report, terminal: Terminal, *, total: int) -> None:
    table = Table(box=box.SIMPLE)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if not number else "right", overflow="fold")
    for variant in report.variants:
        table.add_row(*(Cell(cell) for cell in _cells(report, variant)))
    terminal.console.print(table)
    failed = [trial for trial in report.trials if not trial.passed]
    for trial in failed[:MAX_SHOWN]:
        terminal.line(
            f"failed: {one_line(trial.case.title, 60)} ({trial.variant}, run {trial.run}): {_failure_reason(trial)}"
        )
    if len(failed) > MAX_SHOWN:
        terminal.line(f"... and {len(failed) - MAX_SHOWN} more")
    if len(report.trials) < total:
        terminal.report_error(f"stopped: {len(report.trials)} of {total} runs have ended")


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


def _failure_reason(trial: Trial) -> str:
    if trial.error:
        return one_line(trial.error, 200)
    return one_line(
        "; ".join(f"{each.name}: {each.reason or 'failed'}" for each in trial.results if not each.passed), 200
    )


def _write(report: Report, cases_path: str, options: EvalOptions, terminal: Terminal) -> None:
    if options.json is not None:
        save_report(options.json, report.to_json())
    if options.history:
        terminal.line(f"{store_report(Path(cases_path), report.to_json())}: stored", style="dim")
    if options.html is not None:
        save_report(options.html, to_html(report, title=f"Evaluation of {Path(cases_path).name}"))
        terminal.line(f"{options.html}: all runs with their answers", style="dim")
