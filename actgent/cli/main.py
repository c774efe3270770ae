"""The commands and their options. What a command needs is imported when it runs: `--help` does not wait for it."""

import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import trio
from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from actgent.errors import ActgentError, ConfigurationError, InvalidFolder
from actgent.journal.membership import check_cluster_extra
from actgent.protocols import PROTOCOLS

from .commands.limits import Bounds, limits_of
from .commands.talk import TalkOptions, is_message
from .serving.cluster_place import ClusterPlace
from .serving.notify import NotifyOptions
from .serving.place import PlaceOptions
from .signals import Shutdown, run_until_signalled
from .terminal import Terminal

FAILED, WRONG_USE, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 130, 141, 143

Count = Annotated[int, Parameter(validator=Number(gte=1))]
Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

app = App(
    name="actgent",
    help="LLM agents as actors. Neither `actgent demo` nor `actgent chat --offline` needs a key.",
    result_action="return_value",
)


@app.command
def demo(
    *,
    sessions: Count | None = None,
    agents: Count = 10,
    live: Flag = False,
    model: str | None = None,
) -> int:
    """Show what actgent does, with the real SDKs against a scripted provider on loopback.

    Three acts: a conversation with tools, an urgent message that overtakes a full inbox, and 1,000 sessions on
    10 agents at once. It needs no key and no network.

    Args:
        sessions: How many sessions the third act has; 1000, or 20 with --live.
        agents: How many agents they share.
        live: Ask a real provider: the one of OPENAI_API_KEY, ANTHROPIC_API_KEY or LLM_PROVIDER_URL. This costs money.
        model: With --live, the model to ask, e.g. openai:gpt-5.2.
    """
    from .demos.demo import DemoOptions, demo as play  # noqa: PLC0415 - the SDKs take two seconds

    options = DemoOptions(sessions=sessions, agents=agents, live=live, model=model)
    return _run(lambda terminal, shutdown: play(options, terminal, shutdown))


@app.command
def chat(
    file: str | None = None,
    message: str | None = None,
    /,
    *,
    model: str | None = None,
    base_url: str | None = None,
    system: str | None = None,
    role: str | None = None,
    goal: str | None = None,
    temperature: float | None = None,
    max_tokens: Count | None = None,
    bounds: Bounds | None = None,
    talk: TalkOptions | None = None,
    offline: Flag = False,
) -> int:
    r"""Talk to a model or an agent in the terminal, or ask one question.

    Answers appear as they grow, tool calls between them; /help lists what can be typed besides. Ctrl-C stops a running
    answer and the conversation stays; /quit or Ctrl-D ends it. A message as argument is answered, and that is all:

    actgent chat "What is 17 * 23?" --offline

    From a pipe each line is one message, and `-m -` takes all of it as one. There the first Ctrl-C lets a running answer
    end, the second stops it.

    Args:
        file: An agent's folder, or a Python file that makes an agent, or FILE.py:NAME; without it a plain agent is made of the options.
        message: What to say; without it the terminal or the pipe is read.
        model: openai:MODEL, openai-responses:MODEL or anthropic:MODEL; without it, the one that there is a key for.
        base_url: Where the API stands, for every server with the API of OpenAI or Anthropic.
        system: The whole system prompt.
        role: Who the agent is; used in the default system prompt.
        goal: What it is there for.
        temperature: How freely it answers; the provider's default without it.
        max_tokens: The longest answer.
        bounds: What the whole conversation may take.
        talk: What is said, and where it is kept.
        offline: Talk to a small script instead of a model, or have one stand in for a folder's model; needs no key.
    """
    from .chat import ChatOptions, chat as converse  # noqa: PLC0415 - the SDKs take two seconds

    if message is None and file is not None and is_message(file):
        file, message = None, file
    options = ChatOptions(
        file=file,
        message=message,
        model=model,
        base_url=base_url,
        system=system,
        role=role or "",
        goal=goal or "",
        temperature=temperature,
        max_tokens=max_tokens,
        limits=limits_of(bounds),
        offline=offline,
    )
    options = (talk or TalkOptions()).put_into(options)
    return _run(lambda terminal, shutdown: converse(options, terminal, shutdown))


@app.command
def new(
    name: str,
    /,
    *,
    protocol: Annotated[
        str, Parameter(help=f"How it talks to its model: one of {', '.join(PROTOCOLS)}.")
    ] = "simple",
) -> int:
    """Make a folder with a small agent that runs, and its test.

    Args:
        name: The folder, in this one: lower-case letters, digits, - and _.
        protocol: How it talks to its model.
    """
    from .folders import new as make  # noqa: PLC0415

    return make(name, Terminal(), protocol=protocol)


@app.command
def check(target: str, /, *, journal: str | None = None) -> int:
    """Check an agent's folder without starting or running anything; all that is wrong is named at once.

    With --journal: say what happens to the sessions in the middle when these agents are deployed, e.g. calls whose tool is
    gone or needs an approval now. 1 if somebody should know that before. No model is asked, and no tool runs.

    Args:
        target: The folder, or its brain.md. With --journal also a Python file that defines agents, or a folder of folders.
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, nothing is written.
    """
    if journal is not None:
        from .journals.upgrades import check_journal  # noqa: PLC0415

        return _run(lambda terminal, _: check_journal(journal, target, terminal))
    from .folders import check as look_at  # noqa: PLC0415

    return look_at(target, Terminal())


@app.command
def run(
    folder: str,
    message: str | None = None,
    /,
    *,
    model: str | None = None,
    base_url: str | None = None,
    bounds: Bounds | None = None,
    talk: TalkOptions | None = None,
    offline: Flag = False,
) -> int:
    """Run an agent's folder: answer one message, or talk as `actgent chat` does.

    Args:
        folder: The folder, or its brain.md. Its tools.py is run. A Python file that makes an agent will do, too.
        message: What to say; without it the terminal or the pipe is read.
        model: Goes before LLM_MODEL and what brain.md says.
        base_url: Where the API stands.
        bounds: What the whole conversation may take.
        talk: What is said, and where it is kept.
        offline: Have a script stand in for the model; needs no key.
    """
    from .chat import ChatOptions, chat as converse  # noqa: PLC0415 - the SDKs take two seconds

    bound = limits_of(bounds)
    options = ChatOptions(
        file=folder, message=message, model=model, base_url=base_url, limits=bound, offline=offline
    )
    options = (talk or TalkOptions()).put_into(options)
    return _run(lambda terminal, shutdown: converse(options, terminal, shutdown))


@app.command(name="goal")
def work_towards(
    text: str,
    /,
    *,
    tools: Repeated = (),
    search_dir: Repeated = (),
    recursive: bool = True,
    output: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    max_iterations: Count = 20,
    bounds: Bounds | None = None,
    verbose: Flag = False,
    json: Flag = False,
) -> int:
    """Work towards a goal with the tools of files, until an evaluation says that it is achieved. 1 if it is not.

    A file of tools has functions (state, args), functions with @tool, or objects of Tool; it is run.

    Args:
        text: The goal, in words.
        tools: A Python file of tools; may be given several times.
        search_dir: A folder in which files NAME.tools.py, and NAME.output.py with `output_schema`, are looked for; may be given several times.
        recursive: Look into the folders below, too.
        output: A Python file with `output_schema`, a type or a schema, or a JSON file with a schema: the form of the answer.
        model: provider:MODEL; without it LLM_MODEL, TAGENT_MODEL, or the one that there is a key for. LLM_PLANNER_MODEL and the like name those of single roles.
        base_url: Where the API stands.
        max_iterations: Model calls, at most.
        bounds: What the whole work may take.
        verbose: Tell decisions, calls and changes of the state on standard error.
        json: Print the result with its status and figures as one line of JSON.
    """
    from .goal import GoalOptions, work  # noqa: PLC0415 - the SDKs take two seconds

    options = GoalOptions(
        goal=text,
        tools=tools,
        search=search_dir,
        recursive=recursive,
        output=output,
        model=model,
        base_url=base_url,
        max_iterations=max_iterations,
        limits=limits_of(bounds),
        verbose=verbose,
        json=json,
    )
    return _run(lambda terminal, shutdown: work(options, terminal, shutdown))


@app.command(name="eval")
def evaluate_cases(
    cases: str,
    /,
    *,
    agent: str | None = None,
    model: Repeated = (),
    prompt: Repeated = (),
    runs: Count = 1,
    concurrency: Count = 8,
    judge: str | None = None,
    case: Repeated = (),
    threshold: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 1.0,
    html: str | None = None,
    json: str | None = None,
    offline: Flag = False,
    from_journal: str | None = None,
    session: str | None = None,
    limit: Count = 100,
) -> int:
    """Run cases with an agent, side by side for models and prompts, and report what passed. 1 if too little did.

    Args:
        cases: An agent's folder, whose cases stand in tests/; or a file of cases (.md, .jsonl, .json), a folder of them, or a Python file with `cases`.
        agent: Who answers: an agent's folder, or a Python file that defines an agent. With --from-journal, its name.
        model: A model to ask, as in --model openai:gpt-5.2; several are compared.
        prompt: A file with a prompt, in the place of the text in brain.md; several are compared.
        runs: How often each case is run.
        concurrency: How many run at the same time.
        judge: The model that judges what cases have a `judge` for.
        case: Run only cases of this name, part of a name, or tag; may be given several times.
        threshold: The part of the runs that has to pass, of each model and prompt, from 0 to 1.
        html: Write a page with all answers into this file.
        json: Write all figures and answers into this file, for programs.
        offline: Have a script stand in for the folder's model; needs no key.
        from_journal: Run nothing: write cases from the sessions of this journal into the file.
        session: With --from-journal, this session alone.
        limit: With --from-journal, how many sessions at most, the latest first.
    """
    from .working.evaluation import EvalOptions, make_cases, run_evaluation  # noqa: PLC0415 - the SDKs take two seconds

    if from_journal is not None:
        return _run(
            lambda terminal, _: make_cases(
                from_journal, cases, terminal, agent=agent, session=session, limit=limit
            )
        )
    if session is not None:
        raise ConfigurationError("--session goes with --from-journal, which makes cases of sessions")
    options = EvalOptions(
        cases=cases,
        agent=agent,
        models=model,
        prompts=prompt,
        runs=runs,
        concurrency=concurrency,
        judge=judge,
        names=case,
        json=json,
        html=html,
        threshold=threshold,
        offline=offline,
    )
    return _run(lambda terminal, shutdown: run_evaluation(options, terminal, shutdown))


@app.command
def inspect(
    journal: str,
    session: str | None = None,
    /,
    *,
    agent: str | None = None,
    steps: Flag = False,
    full: Flag = False,
    context: Flag = False,
    step: Count | None = None,
    code: str | None = None,
) -> int:
    """List the sessions of a journal, or read the transcript of one. No model is asked, and no tool is run.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, nothing is written.
        session: The session to read.
        agent: List the sessions of this agent alone; with a session, whose it is, where several have one of this id.
        steps: Every record of the session by its number, and not only what was said.
        full: Whole texts.
        context: How long each request of the session was that a model answered, and what was cut to make it fit.
        step: With --context and --code, show what the model was shown for the answer in this record, and why.
        code: The agent's folder, or a Python file that defines it, or FILE.py:NAME: its code puts the request together.
    """
    if context or step is not None or code is not None:
        from .journals.context import check_context_options, list_requests, show  # noqa: PLC0415 - the SDKs take two seconds

        check_context_options(session, step, code)
        known = session or ""
        if step is None or code is None:
            return _run(lambda terminal, _: list_requests(journal, known, terminal, agent=agent))
        return _run(
            lambda terminal, _: show(journal, known, step, terminal, agent=agent, code=code, full=full)
        )
    from .journals.journal import inspect as look  # noqa: PLC0415

    return _run(
        lambda terminal, _: look(journal, terminal, session=session, agent=agent, steps=steps, full=full)
    )


@app.command
def replay(
    journal: str,
    session: str,
    /,
    *,
    of: str | None = None,
    to: Count | None = None,
    agent: str | None = None,
    fork: str | None = None,
    message: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    system: str | None = None,
) -> int:
    """Make a session again as it was after any of its steps, with model and tools off.

    The digest is the same whenever the same history and state come out. With --agent its code is run on the recorded
    answers and tool results, and the first difference is named. With --fork a copy of the session goes on from the
    step, this time with model and tools; the recorded one stays as it is.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, unless --fork adds to it.
        session: The session.
        of: The name of its agent, where several have a session of this id.
        to: The number of the last record to take; `actgent inspect --steps` shows them.
        agent: An agent's folder, or a Python file that defines an agent, or FILE.py:NAME.
        fork: The id of the copy that goes on.
        message: With --fork, what to say next; without it only an unfinished turn goes on.
        model: With --fork, the model to ask, for a folder or a plain agent.
        base_url: Where its API stands.
        system: With --fork and no --agent, the whole system prompt.
    """
    if fork is None and any(given is not None for given in (message, model, base_url, system)):
        raise ConfigurationError(
            "--message, --model, --base-url and --system go with --fork: a replay asks no model"
        )
    if agent is None and fork is None:
        from .journals.journal import replay as rebuild  # noqa: PLC0415

        return _run(lambda terminal, _: rebuild(journal, session, terminal, of=of, to=to))
    from .chat import ChatOptions  # noqa: PLC0415 - the SDKs take two seconds
    from .journals.replay import ReplayOptions, compare, fork as go_on  # noqa: PLC0415

    who = ChatOptions(file=agent, model=model, base_url=base_url, system=system, message=message)
    options = ReplayOptions(journal=journal, session=session, of=of, to=to, fork=fork, agent=who)
    if fork is None:
        return _run(lambda terminal, _: compare(options, terminal))
    return _run(lambda terminal, _: go_on(options, terminal))


journals = App(name="journal", help="Look after a journal: check, salvage, backup, export, import.")
app.command(journals)


@journals.command(name="check")
def check_journal(journal: str, /) -> int:
    """Name all that is damaged in a journal's file; nothing is changed. 1 if something is.

    Args:
        journal: The file; no agent may be using it.
    """
    from .journals.journal import check as look  # noqa: PLC0415

    return look(journal, Terminal())


@journals.command
def salvage(journal: str, new: str, /) -> int:
    """Carry each session, up to its first damaged record, into a new file. 1 if something was lost.

    Args:
        journal: The damaged file; it is not changed.
        new: The file to make.
    """
    from .journals.journal import salvage as carry_over  # noqa: PLC0415

    return carry_over(journal, new, Terminal())


@journals.command
def backup(journal: str, file: str, /) -> int:
    """Copy a journal, which an agent may be using, to a new file, and read the copy from end to end.

    To restore it: end the process, remove the journal's file with what stands beside it (-wal, -lock), and put the copy
    in its place.

    Args:
        journal: The file of a journal. One in PostgreSQL is copied by pg_dump.
        file: The new file; there must be none.
    """
    from .journals.journal import backup as copy  # noqa: PLC0415

    return copy(journal, file, Terminal())


@journals.command
def export(journal: str, file: str, /, *, agent: str | None = None, session: str | None = None) -> int:
    """Write sessions into a file, for another journal or for a test. It holds all that was said.

    Args:
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it.
        file: The file to make.
        agent: The sessions of this agent alone.
        session: This session alone.
    """
    from .journals.journal import export as write  # noqa: PLC0415

    return _run(lambda terminal, _: write(journal, file, terminal, agent=agent, session=session))


@journals.command(name="import")
def import_sessions(journal: str, file: str, /, *, new_ids: bool = False) -> int:
    """Add the sessions of an exported file to a journal. What is unfinished in them goes on when their agent starts.

    Args:
        journal: The file of a journal, made where there is none, or postgres://HOST/DATABASE.
        file: The exported file.
        new_ids: Give the sessions new ids, so that they can stand beside those that they were exported from.
    """
    from .journals.journal import import_ as add  # noqa: PLC0415

    return _run(lambda terminal, _: add(journal, file, terminal, new_ids=new_ids))


pipelines = App(
    name="pipeline", help="Run pipelines of agents: run, look at a run, go on with it, check, draw."
)
app.command(pipelines)


@pipelines.command(name="run")
def run_pipeline(
    file: str,
    /,
    *,
    given: Annotated[Repeated, Parameter(name="--input")] = (),
    inputs: str | None = None,
    run: str | None = None,
    journal: str | None = None,
    agents: str | None = None,
    model: str | None = None,
    bounds: Bounds | None = None,
    json: Flag = False,
) -> int:
    """Run a pipeline, and show what its steps came to. 1 unless all that was wanted is done.

    With a journal a run goes on after a crash: give its id again, or `actgent pipeline resume`.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        given: An input that is a text, as NAME=VALUE; may be given several times.
        inputs: All inputs as a JSON object.
        run: The id of the run; one that is there is joined, or its result shown.
        journal: Keep the run in this file, or in postgres://HOST/DATABASE.
        agents: The agents that a file of YAML or JSON names: a Python file, or a folder of agents' folders.
        model: The model of its steps with a goal, e.g. openai:gpt-5.2.
        bounds: What the run may take, with all of its steps.
        json: The result as one line of JSON.
    """
    from .working.pipelines import PipelineOptions, run_pipeline as start  # noqa: PLC0415 - the SDKs take two seconds

    options = PipelineOptions(
        file=file,
        agents=agents,
        model=model,
        journal=journal,
        run=run,
        inputs=inputs,
        values=given,
        limits=limits_of(bounds),
        json=json,
    )
    return _run(lambda terminal, _: start(options, terminal))


@pipelines.command(name="show")
def show_run(file: str, run: str, /, *, journal: str, json: Flag = False) -> int:
    """Show what the steps of a run came to so far. No model is asked, and agents may be using the journal.

    Args:
        file: The file of the pipeline.
        run: The id of the run.
        journal: The file of the journal, or postgres://HOST/DATABASE.
        json: As one line of JSON.
    """
    from .working.pipelines import PipelineOptions, show_run as show  # noqa: PLC0415

    options = PipelineOptions(file=file, journal=journal, run=run, json=json)
    return _run(lambda terminal, _: show(options, terminal))


@pipelines.command(name="resume")
def resume_run(
    file: str,
    run: str,
    /,
    *,
    steps: Annotated[Repeated, Parameter(name="--from")] = (),
    journal: str,
    agents: str | None = None,
    model: str | None = None,
    bounds: Bounds | None = None,
    json: Flag = False,
) -> int:
    """Go on with a run: where its process left it, or else with all that failed or never ran. 1 unless that is done.

    Args:
        file: The file of the pipeline.
        run: The id of the run.
        steps: Run this step again, and all that comes after it; may be given several times. Others keep what they gave.
        journal: The file of the journal, or postgres://HOST/DATABASE.
        agents: The agents that a file of YAML or JSON names.
        model: The model of its steps with a goal.
        bounds: What it may take from now on, where steps run again.
        json: The result as one line of JSON.
    """
    from .working.pipelines import PipelineOptions, resume_run as go_on  # noqa: PLC0415

    options = PipelineOptions(
        file=file, agents=agents, model=model, journal=journal, run=run, limits=limits_of(bounds), json=json
    )
    return _run(lambda terminal, _: go_on(options, terminal, steps=steps))


@pipelines.command(name="check")
def check_pipeline(file: str, /, *, agents: str | None = None) -> int:
    """Say what a pipeline holds, or all that is wrong with it, before anything runs.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        agents: The agents that it names; without them any name will do.
    """
    from .working.pipelines import PipelineOptions, check_pipeline as look  # noqa: PLC0415

    return look(PipelineOptions(file=file, agents=agents), Terminal())


@pipelines.command(name="draw")
def draw_pipeline(file: str, /, *, mermaid: Flag = False) -> int:
    """Draw the steps of a pipeline, in groups that may run side by side.

    Args:
        file: A file of YAML or JSON, or a Python file that defines a pipeline, or FILE.py:NAME.
        mermaid: As a flowchart of Mermaid, for pages that draw it.
    """
    from .working.pipelines import PipelineOptions, draw_pipeline as draw  # noqa: PLC0415

    return draw(PipelineOptions(file=file), Terminal(), mermaid=mermaid)


memory = App(name="memory", help="What is remembered of an owner: list, show, correct, forget, export.")
app.command(memory)


@memory.command(name="list")
def list_memories(memories: str, /, *, owner: str | None = None, kind: str | None = None) -> int:
    """List the memories of an owner that count now; without --owner, the owners and how many each has.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE; agents may be using it.
        owner: Whose; `agent:NAME` is an agent.
        kind: Only of this kind.
    """
    from .journals.memory import list_memories as look  # noqa: PLC0415

    return _run(lambda terminal, _: look(memories, terminal, owner=owner, kind=kind))


@memory.command(name="show")
def show_memory(memories: str, memory_id: str, /, *, owner: str) -> int:
    """Show a memory with where it comes from, what it replaced, and its links.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        memory_id: Its id, as `list` tells it.
        owner: Whose it is.
    """
    from .journals.memory import show_memory as show  # noqa: PLC0415

    return _run(lambda terminal, _: show(memories, memory_id, terminal, owner=owner))


@memory.command(name="correct")
def correct_memory(memories: str, memory_id: str, text: str, /, *, owner: str) -> int:
    """Put another text in the place of a memory, which stays as history.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        memory_id: Its id.
        text: What is true.
        owner: Whose it is.
    """
    from .journals.memory import correct_memory as correct  # noqa: PLC0415

    return _run(lambda terminal, _: correct(memories, memory_id, text, terminal, owner=owner))


@memory.command(name="forget")
def forget_memories(
    memories: str,
    /,
    *ids: str,
    owner: str,
    everything: Annotated[Flag, Parameter(name="--all")] = False,
    journal: str | None = None,
) -> int:
    """Forget memories by their ids, or with --all erase all that is kept of an owner: memories, history, vectors, links.

    With --journal also the owner's sessions with all below them, and with these their summaries and snapshots.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        ids: The ids of memories.
        owner: Whose they are.
        everything: All of this owner.
        journal: With --all, the file of a journal, or postgres://HOST/DATABASE; no agent may be using it.
    """
    from .journals.memory import forget_memories as forget  # noqa: PLC0415

    return _run(
        lambda terminal, _: forget(memories, ids, terminal, owner=owner, all_of=everything, journal=journal)
    )


@memory.command(name="export")
def export_memories(memories: str, /, *, owner: str) -> int:
    """Write all that is remembered of an owner, history and links too, as lines of JSON.

    Args:
        memories: The file of memories, or postgres://HOST/DATABASE.
        owner: Whose.
    """
    from .journals.memory import export_memories as write  # noqa: PLC0415

    return _run(lambda terminal, _: write(memories, terminal, owner=owner))


@app.command(name="tools")
def list_tools(target: str, /, *, json: Flag = False) -> int:
    """List what an agent would have: tools with schemas, effects, approvals, and where each comes from.

    Its code is run, and its toolsets are connected. 1 if one of them is not available.

    Args:
        target: An agent's folder, a Python file that defines agents, or a folder or file of tools (actgent_tools.py).
        json: Everything, whole schemas too, as one line of JSON.
    """
    from .tool_list import list_tools as show  # noqa: PLC0415

    return _run(lambda terminal, _: show(target, terminal, json=json))


servers = App(name="mcp", help="Look after MCP servers: list their tools, call one, check them, lock them.")
app.command(servers)


@servers.command(name="list")
def list_servers(target: str = ".", /, *, json: Flag = False) -> int:
    """List the servers with their tools. 1 if one of them is not available.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        json: Whole schemas too, as one line of JSON.
    """
    from .serving.servers import list_servers as show  # noqa: PLC0415

    return _run(lambda terminal, _: show(target, terminal, json=json))


@servers.command(name="call")
def call_tool(target: str, server: str, tool: str, arguments: str = "{}", /) -> int:
    """Run one tool of a server, and print its result.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it.
        tool: The tool's name.
        arguments: A JSON object.
    """
    from .serving.servers import call_tool as ask  # noqa: PLC0415

    return _run(lambda terminal, _: ask(target, server, tool, arguments, terminal))


@servers.command(name="prompts")
def show_prompts(target: str = ".", server: str = "", name: str = "", arguments: str = "{}", /) -> int:
    """List the prompts that servers suggest; with a server and a name, show that one's text.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it; all of them without.
        name: The prompt's name.
        arguments: Its arguments, as a JSON object.
    """
    from .serving.servers import show_prompts as show  # noqa: PLC0415

    return _run(lambda terminal, _: show(target, terminal, server=server, name=name, arguments=arguments))


@servers.command(name="login")
def log_in(target: str, server: str, /, *, again: Flag = False) -> int:
    """Authorize a server by OAuth: open the address that is printed in a browser. Its tokens are kept in a file.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it; it has an "oauth" there.
        again: Forget what is known of it first, e.g. to be somebody else.
    """
    from .serving.servers import log_in as authorize  # noqa: PLC0415

    return _run(lambda terminal, _: authorize(target, server, terminal, again=again))


@servers.command(name="check")
def check_servers(target: str = ".", /) -> int:
    """Connect to each server, and compare its tools and prompts with the lock. 1 if one fails, or one is not as it was locked.

    Args:
        target: A file like mcp_config.json, or a folder with one.
    """
    from .serving.servers import check_servers as look_at  # noqa: PLC0415

    return _run(lambda terminal, _: look_at(target, terminal))


@servers.command(name="lock")
def lock_servers(target: str = ".", /) -> int:
    """Show how tools and prompts differ from the lock, and write them into it as they are now, beside the file of the servers.

    A server that fails keeps what it had. Where there is a lock, a tool or prompt that is not in it, or differs, is withheld.

    Args:
        target: A file like mcp_config.json, or a folder with one.
    """
    from .serving.servers import lock_servers as lock  # noqa: PLC0415

    return _run(lambda terminal, _: lock(target, terminal))


@app.command
def serve(
    target: str,
    /,
    *,
    journal: str = "memory:",
    bind: str = "127.0.0.1:8300",
    tokens: str | None = None,
    origin: Repeated = (),
    host: Repeated = (),
    tls_cert: str | None = None,
    tls_key: str | None = None,
    notify: NotifyOptions | None = None,
    reload: Flag = False,
) -> int:
    """Put agents behind HTTP, for programs in any language. The extra `web` has what it needs.

    The first Ctrl-C or SIGTERM takes nothing new, tells streams that they end, and lets what runs end; the second ends it at once.

    Args:
        target: An agent's folder, a folder of such folders, or a Python file that defines agents.
        journal: The file of a journal, or postgres://HOST/DATABASE; without it sessions end with the process.
        bind: Where to listen, HOST:PORT. Off loopback there is no start without --tokens.
        tokens: The file of tokens that `actgent token new` makes; without it, one token is made and shown.
        origin: A site whose pages may ask, such as https://app.example.com; may be given several times.
        host: A name by which it is asked, as browsers send it; may be given several times.
        tls_cert: A certificate, where no proxy in front speaks TLS.
        tls_key: Its key.
        notify: Who is told of what happens.
        reload: For developing: start again when a file of the agents changes, and can be run.
    """
    from .serving.reloading import serve_again  # noqa: PLC0415 - the SDKs take two seconds
    from .serving.serve import ServeOptions, serve as put  # noqa: PLC0415

    options = ServeOptions(
        target=target,
        journal=journal,
        bind=bind,
        tokens=tokens,
        origins=origin,
        hosts=host,
        tls_cert=tls_cert,
        tls_key=tls_key,
        notify=notify or NotifyOptions(),
    )
    play = serve_again if reload else put
    return _run(lambda terminal, shutdown: play(options, terminal, shutdown))


@app.command
def top(
    *,
    place: PlaceOptions | None = None,
    every: Annotated[float, Parameter(validator=Number(gte=0.1))] = 1.0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show how agents are just now: inboxes, turns, who waits for people, provider limits, spending.

    Of a running server, until Ctrl-C; turns a second and spending take a token with the scope metrics. Of a journal, its
    sessions by their states. In a pipe it is shown once.

    Args:
        place: Where to look.
        every: Seconds between two looks.
        once: Look once.
        json: Write a JSON object a look, for programs.
    """
    from .serving.top import TopOptions, top as look  # noqa: PLC0415 - the SDKs take two seconds

    options = TopOptions(place=place or PlaceOptions(), every=every, once=once, json=json)
    return _run(lambda terminal, shutdown: look(options, terminal, shutdown))


@app.command(name="watch")
def watch_one(
    session: str,
    /,
    *,
    place: PlaceOptions | None = None,
    agent: str | None = None,
    after: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show what happens in a session, as it happens, until it is closed or Ctrl-C is pressed.

    Of a running server, over its restarts, each event once. Of a journal, which an agent may be using; nothing is written.

    Args:
        session: Its id.
        place: Where to look.
        agent: Whose it is, where several agents have one of this id.
        after: The number of the last event that is known already.
        once: Show what is there, and end.
        json: Write a JSON object an event, for programs.
    """
    from .serving.watch import WatchOptions, watch_session  # noqa: PLC0415 - the SDKs take two seconds

    options = WatchOptions(
        session=session, place=place or PlaceOptions(), agent=agent, after=after, once=once, json=json
    )
    return _run(lambda terminal, shutdown: watch_session(options, terminal, shutdown))


@app.command
def node(target: str, /, *, name: str | None = None, place: ClusterPlace | None = None) -> int:
    """Run agents as a node of a cluster, to the first signal or until `actgent cluster drain`.

    Each session lives in one node at a time; when that one ends or dies, another one goes on with it.

    Args:
        target: An agent's folder, a folder of such, or a Python file that defines agents.
        name: How the node's name begins; the machine's without it.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from .serving.node import NodeOptions, serve_node  # noqa: PLC0415 - the SDKs take two seconds

    options = NodeOptions(target=target, name=name, place=place or ClusterPlace())
    return _run(lambda terminal, shutdown: serve_node(options, terminal, shutdown))


clusters = App(name="cluster", help="Look after a cluster: status, drain, dead.")
app.command(clusters)


@clusters.command(name="status")
def cluster_status(*, json: Flag = False, full: Flag = False, place: ClusterPlace | None = None) -> int:
    """Show the nodes and partitions of a cluster. 1 if a partition is served by nobody.

    Args:
        json: Write one JSON object, for programs.
        full: Name each partition, too.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from .serving.cluster import show_status  # noqa: PLC0415

    where = place or ClusterPlace()
    return _run(lambda terminal, _: show_status(where, terminal, json=json, full=full))


@clusters.command(name="drain")
def cluster_drain(node: str, /, *, place: ClusterPlace | None = None) -> int:
    """Have a node hand over all that it serves, and end; returns when it has.

    Args:
        node: Its name, or how it begins.
        place: Where the cluster is; its journal is not asked for.
    """
    check_cluster_extra()
    from .serving.cluster import drain_node  # noqa: PLC0415

    where = place or ClusterPlace()
    return _run(lambda terminal, _: drain_node(where, node, terminal))


dead_letters = App(
    name="dead",
    help="Name the messages that were given up, as each process died of them. 1 if one was not said again.",
)
clusters.command(dead_letters)


@dead_letters.default
def dead_list(*, json: Flag = False, place: ClusterPlace | None = None) -> int:
    """Name the messages that were given up, as each process died of them. 1 if one was not said again.

    Args:
        json: Write one JSON array, for programs.
        place: Where the cluster is; its broker is not asked for.
    """
    check_cluster_extra()
    from .serving.cluster import list_dead  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return _run(lambda terminal, _: list_dead(where, terminal, json=json))


@dead_letters.command(name="retry")
def dead_retry(message: str, /, *, session: str | None = None, place: ClusterPlace | None = None) -> int:
    """Have a message said again to its session, under a new id, which is printed; however often, it is said once more.

    Args:
        message: Its id, as `actgent cluster dead` names it.
        session: Its session, where several have a message of this id.
        place: Where the cluster is.
    """
    check_cluster_extra()
    from .serving.cluster import say_again  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return _run(lambda terminal, _: say_again(where, message, terminal, session=session))


@dead_letters.command(name="drop")
def dead_drop(message: str, /, *, session: str | None = None, place: ClusterPlace | None = None) -> int:
    """Take a message off the list; its session keeps it as failed.

    Args:
        message: Its id, as `actgent cluster dead` names it.
        session: Its session, where several have a message of this id.
        place: Where the cluster is; its broker is not asked for.
    """
    check_cluster_extra()
    from .serving.cluster import drop  # noqa: PLC0415 - the SDKs take two seconds

    where = place or ClusterPlace()
    return _run(lambda terminal, _: drop(where, message, terminal, session=session))


access = App(name="token", help="Look after the tokens of a gateway: new, list, revoke.")
app.command(access)


@access.command(name="new")
def new_access(
    *,
    name: str,
    owner: str,
    scope: Repeated = ("chat",),
    days: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    file: str = "tokens.toml",
) -> int:
    """Make a token, and show it this once; the file holds its SHA-256 alone.

    Args:
        name: What it is called in lists.
        owner: Whose sessions it reaches, and for whom it speaks.
        scope: What it may do: read, chat, approve, journal, metrics, admin, impersonate:*; may be given several times.
        days: How long it is taken; without end if not given.
        file: The file of tokens, made where there is none.
    """
    from .serving.tokens import make_token  # noqa: PLC0415

    return make_token(file, Terminal(), name=name, owner=owner, scopes=scope, days=days)


@access.command(name="list")
def list_access(*, file: str = "tokens.toml") -> int:
    """Name the tokens of a file, with owners, scopes and dates.

    Args:
        file: The file of tokens.
    """
    from .serving.tokens import list_tokens  # noqa: PLC0415

    return list_tokens(file, Terminal())


@access.command(name="revoke")
def revoke_access(name: str, /, *, file: str = "tokens.toml") -> int:
    """Take a token out of a file; a gateway that runs refuses it a second later.

    Args:
        name: Its name.
        file: The file of tokens.
    """
    from .serving.tokens import revoke_token  # noqa: PLC0415

    return revoke_token(file, name, Terminal())


hooks = App(name="webhooks", help="Look after the webhooks of a running server: list, redeliver.")
app.command(hooks)


@hooks.command(name="list")
def list_hooks(*, place: PlaceOptions | None = None) -> int:
    """Name the webhooks of a running server, and what each has given up; the code is 1 where something was.

    Args:
        place: Which server; its token has the scope admin.
    """
    from .serving.webhooks import list_given_up  # noqa: PLC0415 - the SDKs take two seconds

    return _run(lambda terminal, _: list_given_up(place or PlaceOptions(), terminal))


@hooks.command(name="redeliver")
def redeliver_hooks(*ids: str, place: PlaceOptions | None = None) -> int:
    """Send again what webhooks have given up: what is named, or all of it.

    Args:
        ids: As the list has them, msg_...; all that is listed without.
        place: Which server; its token has the scope admin.
    """
    from .serving.webhooks import send_again  # noqa: PLC0415 - the SDKs take two seconds

    return _run(lambda terminal, _: send_again(place or PlaceOptions(), ids, terminal))


def _run(command: Callable[[Terminal, Shutdown], Awaitable[int]]) -> int:
    terminal = Terminal()

    async def with_signals() -> int:
        return await run_until_signalled(lambda shutdown: command(terminal, shutdown), notice=terminal.notice)

    return trio.run(with_signals)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave the process with its exit code.

    0 is success, 1 a failure, 2 wrong use or configuration, 130 and 143 the end by SIGINT and SIGTERM.
    """
    signal.signal(signal.SIGTERM, _exit_early)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may say what the terminal has no character for
    code = _code_of(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # the exit code is decided; the interpreter takes a while to end
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _without_output(error)
    sys.exit(code)


def _exit_early(_number: int, _frame: object) -> None:
    """End the process on a SIGTERM that comes before a command listens for signals."""
    sys.exit(TERMINATED)


def _code_of(arguments: Sequence[str] | None) -> int:
    try:
        return app(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        Terminal().complain(f"{error} See `actgent --help`.")
        return WRONG_USE
    except ConfigurationError as error:
        for problem in error.problems if isinstance(error, InvalidFolder) else (error,):
            Terminal().complain(problem)
        return WRONG_USE
    except ActgentError as error:
        for line in (error, *getattr(error, "__notes__", ())):
            Terminal().complain(line)
        return FAILED
    except KeyboardInterrupt:  # before trio listens, or after
        return INTERRUPTED
    except OSError as error:
        return _without_output(error)


def _without_output(error: OSError) -> int:
    """Keep the interpreter from complaining at its end that nobody reads, e.g. `| head`, or that a disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    Terminal().complain(error)
    return FAILED
