"""`actgent ci`: compare models and prompts with the recorded sessions of a journal, decision by decision."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text as Cell

from actgent.agents.agent import Agent
from actgent.agents.bare_agent import BareAgent
from actgent.agents.session_replay import Recording
from actgent.definitions.agent_folder import BRAIN
from actgent.errors import ConfigurationError, JournalDamaged, JournalVersion, WireError
from actgent.errors.text_escaping import counted
from actgent.evaluation import DecisionReport, DecisionVariant, compare_decisions, decisions_to_html
from actgent.evaluation.recorded_answer_comparison import join_reports
from actgent.evaluation.recorded_answer_comparison_html import figures_table
from actgent.evaluation.shared_html_parts import cost_words
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionFilter
from actgent.llm.model_interface import LLM
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import NO_USAGE

from .agent_folders import agents_at, is_folder
from .command_options import CiOptions
from .eval_command import build_agent
from .journals.journal_commands import open_read_only
from .model_selection import live_models, open_models
from .prompt_and_report_files import check_output_files, progress_bar, read_prompts, save_report
from .signal_handling import Shutdown
from .terminal_io import Terminal, one_line

MAX_SHOWN = 20
"""Maximum number of differences that are listed."""
MAX_LINE_CHARS = 400
"""Maximum characters of one listed difference."""
PLAIN_AGENT = "assistant"
"""Name of the agent of `actgent chat`, which needs no code."""


async def run_ci(location: str, options: CiOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Compare models and prompts with recorded sessions, and report the differences.

    Return the exit code: 1 if a share of equal decisions is below the threshold, else 0.

    Raises:
        ConfigurationError: The journal has no matching session, or the agent, a model or a report path is invalid.
    """
    check_output_files((options.json, options.html))
    if options.offline and options.model:
        raise ConfigurationError(
            "--offline calls no model, so --model cannot be used with it: omit one of them"
        )
    agents = _load_agents(options)
    recordings, skipped = await _load_recordings(location, options, agents)
    for line in skipped:
        terminal.report_error(line)
    reports: list[DecisionReport] = []
    async with AsyncExitStack() as stack:
        variants = await _make_variants(options, agents, {each.agent for each in recordings}, stack)
        bar = await stack.enter_async_context(progress_bar(terminal, "sessions", len(recordings)))

        def note(report: DecisionReport) -> None:
            reports.append(report)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=len(reports), refresh=True)

        with shutdown.interruptible():
            reports = [
                await compare_decisions(
                    recordings, variants, concurrency=options.concurrency, on_session=note
                )
            ]
    report = join_reports(reports, list(variants))  # if a signal ended the comparison: the finished sessions
    _show(report, terminal, total=len(recordings))
    if options.json is not None:
        save_report(options.json, report.to_json())
    if options.html is not None:
        save_report(options.html, decisions_to_html(report, title=f"Decisions of {location}"))
        terminal.line(f"{options.html}: all differences", style="dim")
    is_whole = report.sessions == len(recordings)
    return 0 if is_whole and not skipped and report.meets(options.threshold) else 1


# --- agents and sessions -----------------------------------------------------------------


def _load_agents(options: CiOptions) -> list[Agent]:
    """Load the agents whose sessions are compared.

    Without `--code`, a plain agent replaces the recorded agent.
    """
    if options.code is None:
        return [BareAgent(PLAIN_AGENT, llm=ScriptedLLM([]))]
    needs_model = not (options.model or options.offline)
    found = agents_at(options.code, needs_model=needs_model)
    if options.agent is None:
        return found
    named = [each for each in found if each.name == options.agent]
    if not named:
        names = ", ".join(sorted({each.name for each in found}))
        raise ConfigurationError(f"{options.code} has no agent {options.agent!r}: choose one of {names}")
    return named


async def _load_recordings(
    location: str, options: CiOptions, agents: Sequence[Agent]
) -> tuple[list[Recording], list[str]]:
    """Load the latest recorded sessions of the agents in which a model answered.

    The second result has an error line for each unreadable session, which is skipped.

    Raises:
        ConfigurationError: The journal has no session that matches the options.
    """
    names = {each.name for each in agents}
    found: list[Recording] = []
    skipped: list[str] = []
    others: set[str] = set()
    async with open_read_only(location) as journal:
        wanted, after = SessionFilter(agent=options.agent), None
        while len(found) < options.limit and (page := await journal.page(wanted, after=after, limit=100)):
            after = page[-1].cursor
            for summary in page:
                if summary.agent not in names:
                    others.add(summary.agent)
                elif options.session in (None, summary.session_id) and len(found) < options.limit:
                    found += await _load_recording(journal, summary.agent, summary.session_id, skipped)
    if not found and not skipped:
        raise ConfigurationError(_no_sessions_error(options, names, others))
    return found, skipped


async def _load_recording(
    journal: Journal, agent: str, session_id: str, skipped: list[str]
) -> list[Recording]:
    """Load a session as a list with one recording. The list is empty if no model answered, or if the session is unreadable.

    For an unreadable session, an error line is appended to `skipped`.
    """
    try:
        recording = Recording(session_id, agent, await journal.load(session_id, agent=agent))
    except (JournalDamaged, JournalVersion, WireError) as error:
        skipped.append(f"session {one_line(session_id, 60)} was skipped: {error}")
        return []
    return [recording] if recording.model_answers else []


def _no_sessions_error(options: CiOptions, names: set[str], others: set[str]) -> str:
    which = f"session {options.session!r}" if options.session is not None else "session with an answer"
    text = f"the journal has no {which} of agent {', '.join(sorted(names))}"
    if not others:
        return f"{text}: `actgent inspect` lists its sessions"
    return f"{text}, but of {', '.join(sorted(others))}: name their code with --code"


async def _make_variants(
    options: CiOptions, agents: Sequence[Agent], used: set[str], stack: AsyncExitStack
) -> Mapping[str, DecisionVariant]:
    """Create one variant for each pair of model and prompt, by display name. `used` are the agents of the sessions."""
    if options.prompt and len(used) > 1:
        raise ConfigurationError(
            f"--prompt replaces the prompt of one agent, and the sessions belong to {', '.join(sorted(used))}: choose one with --agent"
        )
    names: Sequence[str] = options.model
    if options.code is None and not names and not options.offline:
        names = live_models(None, hint="name the code of an agent with --code")[:1]
    models: list[tuple[str, LLM | None]] = [("", None)]
    if names:
        clients = await stack.enter_async_context(open_models(names))
        models = list(zip(names, clients, strict=True))
    default = "recorded answers" if options.offline else "the agent's model"
    return {
        " / ".join(filter(None, (name or default, prompt))): _make_variant(
            options, agents, model, text if prompt else None
        )
        for name, model in models
        for prompt, text in read_prompts(options.prompt).items()
    }


def _make_variant(
    options: CiOptions, agents: Sequence[Agent], model: LLM | None, prompt: str | None
) -> DecisionVariant:
    """Create the variant with a model and a prompt; None keeps those of the agent.

    In an agent folder the prompt replaces the text of brain.md.
    """
    if prompt is None or options.code is None or not is_folder(options.code):
        return DecisionVariant(agents=agents, model=model, prompt=prompt, is_offline=options.offline)
    folder = Path(options.code)
    if folder.is_dir() and not (folder / BRAIN).is_file():
        raise ConfigurationError(
            f"--prompt replaces the text of one {BRAIN}, and {folder} contains several: name one agent's folder"
        )
    agent = build_agent(options.code, ScriptedLLM([]) if options.offline else model, prompt)
    return DecisionVariant(agents=agent, model=model, is_offline=options.offline)


# --- output ------------------------------------------------------------------------------


def _show(report: DecisionReport, terminal: Terminal, *, total: int) -> None:
    table = Table(box=box.SIMPLE)
    for number, heading in enumerate(("", "recorded", *report.variants)):
        table.add_column(
            Cell(one_line(heading, 60)), justify="left" if not number else "right", overflow="fold"
        )
    for line in figures_table(report):
        table.add_row(*map(Cell, line))
    terminal.console.print(table)
    different = [each for each in report.decisions if each.kind != "same"]
    different.sort(key=lambda each: each.kind == "words")
    for each in different[:MAX_SHOWN]:
        place = f"{one_line(each.session_id, 60)} record {each.step} ({one_line(each.variant, 60)})"
        terminal.line(f"{each.kind}: {place}: {one_line(each.text, MAX_LINE_CHARS)}")
    if len(different) > MAX_SHOWN:
        terminal.line(
            f"... and {counted(len(different) - MAX_SHOWN, 'more difference')}: --html or --json lists all"
        )
    for lost in report.unreached[:MAX_SHOWN]:
        terminal.line(
            f"not reached: {one_line(lost.session_id, 60)} ({one_line(lost.variant, 60)}): "
            f"{counted(lost.count, 'decision')}: {one_line(lost.reason, MAX_LINE_CHARS)}"
        )
    spent = [report.row(variant) for variant in report.variants]
    forks = sum((row.fork_usage for row in spent), NO_USAGE)
    if forks.input_tokens or forks.output_tokens:
        terminal.line(
            f"forks used additional {forks.input_tokens:,} tokens in, {forks.output_tokens:,} out, {cost_words(forks)}"
        )
    terminal.line(f"{counted(report.sessions, 'session')} compared; no tool ran")
    if report.sessions < total:
        terminal.report_error(f"stopped: {report.sessions} of {total} sessions have ended")
