"""Commands that have agents work: `demo`, `chat`, `run`, `goal`, `eval`, and what one needs before."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.cli.terminal import Terminal
from actgent.errors import ConfigurationError
from actgent.protocols import PROTOCOLS

from .base import Count, Flag, Repeated, app, run_command
from .limits import Bounds, limits_of
from .talk import TalkOptions, is_message


@app.command
def demo(
    *,
    sessions: Count | None = None,
    agents: Count = 10,
    live: Flag = False,
    model: str | None = None,
) -> int:
    """Show what actgent does, over HTTP with a scripted provider on loopback; the providers' SDKs are the transport.

    Three acts: a conversation with tools, an urgent message that overtakes a full inbox, and 1,000 sessions on
    10 agents at once. It needs no key and no network.

    Args:
        sessions: How many sessions the third act has; 1000, or 20 with --live.
        agents: How many agents they share.
        live: Ask a real provider: the one of OPENAI_API_KEY, ANTHROPIC_API_KEY or LLM_PROVIDER_URL. This costs money.
        model: With --live, the model to ask, e.g. openai:gpt-5.2.
    """
    from actgent.cli.demos.demo import DemoOptions, demo as play  # noqa: PLC0415 - the SDKs take two seconds

    options = DemoOptions(sessions=sessions, agents=agents, live=live, model=model)
    return run_command(lambda terminal, shutdown: play(options, terminal, shutdown))


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
    from actgent.cli.chat import ChatOptions, chat as converse  # noqa: PLC0415 - the SDKs take two seconds

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
    return run_command(lambda terminal, shutdown: converse(options, terminal, shutdown))


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
        name: The folder; without a path, in this one. Its own name has lower-case letters, digits, - and _.
        protocol: How it talks to its model.
    """
    from actgent.cli.folders import new as make  # noqa: PLC0415

    return make(name, Terminal(), protocol=protocol)


@app.command
def check(target: str, /, *, journal: str | None = None) -> int:
    """Check an agent's folder without starting or running anything; all that is wrong is named at once.

    With --journal: say what happens to the sessions in the middle when these agents are deployed, e.g. calls whose tool is
    gone or needs an approval now. 1 if somebody should know that before. No model is asked, and no tool runs.

    Args:
        target: The folder, its brain.md, or a folder of such folders. With --journal also a Python file that defines agents.
        journal: The file of a journal, or postgres://HOST/DATABASE; agents may be using it, nothing is written.
    """
    if journal is not None:
        from actgent.cli.journals.upgrades import check_journal  # noqa: PLC0415

        return run_command(lambda terminal, _: check_journal(journal, target, terminal))
    from actgent.cli.folders import check as look_at  # noqa: PLC0415

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
    from actgent.cli.chat import ChatOptions, chat as converse  # noqa: PLC0415 - the SDKs take two seconds

    bound = limits_of(bounds)
    options = ChatOptions(
        file=folder, message=message, model=model, base_url=base_url, limits=bound, offline=offline
    )
    options = (talk or TalkOptions()).put_into(options)
    return run_command(lambda terminal, shutdown: converse(options, terminal, shutdown))


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
    from actgent.cli.goal import GoalOptions, work  # noqa: PLC0415 - the SDKs take two seconds

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
    return run_command(lambda terminal, shutdown: work(options, terminal, shutdown))


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
    from actgent.cli.working.evaluation import EvalOptions, make_cases, run_evaluation  # noqa: PLC0415 - the SDKs take two seconds

    if from_journal is not None:
        return run_command(
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
    return run_command(lambda terminal, shutdown: run_evaluation(options, terminal, shutdown))


@app.command(name="tools")
def list_tools(target: str, /, *, json: Flag = False, allow_env: Repeated = ()) -> int:
    """List what an agent would have: tools with schemas, effects, approvals, and where each comes from.

    Its code is run, and its toolsets are connected. 1 if one of them is not available.

    Args:
        target: An agent's folder, a Python file that defines agents, or a folder or file of tools (actgent_tools.py).
        json: Everything, whole schemas too, as one line of JSON.
        allow_env: An environment variable that mcp_config.json may pass to its servers; may be given several times.
    """
    from actgent.cli.tool_list import list_tools as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(target, terminal, json=json, allow_env=allow_env))
