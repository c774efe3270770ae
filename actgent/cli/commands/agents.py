"""Commands that run agents: `demo`, `chat`, `new`, `check`, `run`, `goal`, `eval`, `tools`."""

from typing import Annotated

import attrs
from cyclopts import Parameter

from actgent.cli.command_options import (
    ChatOptions,
    CiOptions,
    ConversationOptions,
    Count,
    DemoOptions,
    EvalOptions,
    Flag,
    GoalOptions,
    LimitOptions,
    Repeated,
    is_message_text,
    to_limits,
)
from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError
from actgent.protocols import PROTOCOLS

from .command_app import AGENTS, TOOLS, app, run_command


@app.command(group=AGENTS)
def demo(*, options: DemoOptions | None = None) -> int:
    """Show the main features with a scripted model. Needs no API key and no network.

    Three parts: a conversation with tools, an urgent message that overtakes a full inbox, and a load test with 1,000
    sessions on 10 agents. The provider's SDKs talk over HTTP to a scripted server on loopback.

    Args:
        options: Size of the load test, and the model.
    """
    from actgent.cli.demos.demo import demo as run_demo  # noqa: PLC0415 - the SDKs take two seconds

    given = options or DemoOptions()
    return run_command(lambda terminal, shutdown: run_demo(given, terminal, shutdown))


@app.command(group=AGENTS)
def chat(
    agent: str | None = None, message: str | None = None, /, *, options: ChatOptions | None = None
) -> int:
    """Talk to a model or an agent in the terminal, or send one message.

    Answers are streamed; /help lists the slash commands. Ctrl-C stops a running answer; /quit or Ctrl-D ends the
    conversation. With a message as argument, the command prints the answer and exits:

    actgent chat "What is 17 * 23?" --offline

    In a pipe each line is one message; `-m -` sends all of standard input as one message. The first Ctrl-C then waits
    for the running answer, the second cancels the answer.

    Args:
        agent: Agent folder, or Python file that defines an agent, or FILE.py:NAME. Default: a plain agent made from
            the options.
        message: Message to send. Default: read messages from the terminal or the pipe.
        options: Message, model, prompt, limits, journal and output format.
    """
    from actgent.cli.chat_and_run_commands import chat as run_chat  # noqa: PLC0415 - the SDKs take two seconds

    if message is None and agent is not None and is_message_text(agent):
        agent, message = None, agent
    given = (options or ChatOptions()).for_agent(agent, message)
    return run_command(lambda terminal, shutdown: run_chat(given, terminal, shutdown))


@app.command(group=AGENTS)
def new(
    name: str,
    /,
    *,
    protocol: Annotated[
        str,
        Parameter(help=f"How the agent exchanges messages with its model: one of {', '.join(PROTOCOLS)}."),
    ] = "simple",
) -> int:
    """Create an agent folder with a small working agent and its test.

    Args:
        name: Path of the new folder. The folder name may contain lower-case letters, digits, - and _.
        protocol: How the agent exchanges messages with its model.
    """
    from actgent.cli.agent_folders import new as make  # noqa: PLC0415

    return make(name, Terminal(), protocol=protocol)


@app.command(group=AGENTS)
def check(agent: str, /, *, journal: str | None = None) -> int:
    """Check an agent folder without running it, or a Python file by running it, and print all errors.

    Agents that read untrusted text and have no policy, and tools that look like they need untrusted= or sinks=, are
    printed as warnings. Warnings do not change the exit code.

    With --journal: report how unfinished sessions will resume with these agents after a deployment, e.g. calls whose
    tool was removed or now needs approval. The exit code is 1 if a session is affected. No model is called, and no tool
    runs.

    Args:
        agent: Agent folder, its brain.md, a folder of agent folders, or a Python file that defines agents.
        journal: Journal to check: a file, or postgres://HOST/DATABASE. It is only read, and agents may be using it.
    """
    if journal is not None:
        from actgent.cli.journals.resume_after_upgrade_check import check_journal  # noqa: PLC0415

        return run_command(lambda terminal, _: check_journal(journal, agent, terminal))
    from actgent.cli.agent_folders import check as run_check  # noqa: PLC0415

    return run_check(agent, Terminal())


@app.command(group=AGENTS)
def run(agent: str, message: str | None = None, /, *, options: ConversationOptions | None = None) -> int:
    """Run an agent folder: answer one message, or start a conversation as `actgent chat` does.

    Args:
        agent: Agent folder or its brain.md, or a Python file that defines an agent. The folder's tools.py is
            executed.
        message: Message to send. Default: read messages from the terminal or the pipe.
        options: Message, model, limits, journal and output format.
    """
    from actgent.cli.chat_and_run_commands import chat as run_chat  # noqa: PLC0415 - the SDKs take two seconds

    given = ChatOptions(
        **attrs.asdict((options or ConversationOptions()).for_agent(agent, message), recurse=False)
    )
    return run_command(lambda terminal, shutdown: run_chat(given, terminal, shutdown))


@app.command(name="goal", group=AGENTS)
def goal(text: str, /, *, options: GoalOptions | None = None, limits: LimitOptions | None = None) -> int:
    """Work towards a goal with tools from Python files until it is achieved. The exit code is 1 if it is not achieved.

    A tool file contains functions (state, args), functions with @tool, or Tool objects; it is executed. A model call
    evaluates whether the goal is achieved.

    Args:
        text: The goal, in words.
        options: Tools, schema, model and output.
        limits: Limits of the whole run.
    """
    from actgent.cli.run_goal_agent_command import work_towards_goal  # noqa: PLC0415 - the SDKs take two seconds

    given, bound = options or GoalOptions(), to_limits(limits)
    return run_command(
        lambda terminal, shutdown: work_towards_goal(text, given, terminal, shutdown, limits=bound)
    )


@app.command(name="eval", group=AGENTS)
def evaluate_cases(
    cases: str,
    /,
    *,
    options: EvalOptions | None = None,
    from_journal: str | None = None,
    session: str | None = None,
    limit: Count = 100,
) -> int:
    """Run evaluation cases with an agent, compare models and prompts, and report how many passed.

    The exit code is 1 if fewer runs passed than --threshold.

    Args:
        cases: Agent folder with cases in tests/, a file of cases (.md, .jsonl, .json), a folder of them, or a
            Python file with `cases`.
        options: Agent, models, prompts and reports.
        from_journal: Run nothing; write cases made from the sessions of this journal to the file CASES.
        session: With --from-journal, use only this session.
        limit: With --from-journal, the maximum number of sessions, latest first.
    """
    from actgent.cli.eval_command import make_cases, run_evaluation  # noqa: PLC0415 - the SDKs take two seconds

    given = options or EvalOptions()
    if from_journal is not None:
        return run_command(
            lambda terminal, _: make_cases(
                from_journal, cases, terminal, agent=given.agent, session=session, limit=limit
            )
        )
    if session is not None:
        raise ConfigurationError("--session selects a session of a journal, so it requires --from-journal")
    return run_command(lambda terminal, shutdown: run_evaluation(cases, given, terminal, shutdown))


@app.command(name="ci", group=AGENTS)
def compare_recorded_decisions(journal: str, /, *, options: CiOptions | None = None) -> int:
    """Compare models and prompts with recorded sessions: each model decides again at each recorded decision. No tool runs.

    Tool calls get their recorded results. The exit code is 1 if the share of equal decisions is below --threshold. A reply
    with other words counts as an equal decision.

    Args:
        journal: Journal with the sessions: a file, or postgres://HOST/DATABASE. Agents may be using it.
        options: Sessions, models, prompts and reports.
    """
    from actgent.cli.ci_command import run_ci  # noqa: PLC0415 - the SDKs take two seconds

    given = options or CiOptions()
    return run_command(lambda terminal, shutdown: run_ci(journal, given, terminal, shutdown))


@app.command(name="tools", group=TOOLS)
def list_tools(agent: str, /, *, json: Flag = False, allow_env: Repeated = ()) -> int:
    """List the tools of an agent with schema, effect, approval and origin. The exit code is 1 if a toolset is not available.

    The agent's code is executed, and its toolsets are connected.

    Args:
        agent: Agent folder, Python file that defines agents, or folder or file of tools (actgent_tools.py).
        json: Print one JSON object with complete schemas.
        allow_env: Name of an environment variable that mcp_config.json may pass to its servers; may be given
            several times.
    """
    from actgent.cli.tools_command import list_tools as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(agent, terminal, json=json, allow_env=allow_env))
