"""Types of command-line options, and the options of commands that run agents. Each option is declared once, as a field."""

from pathlib import Path
from typing import Annotated, Any, Self

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.errors import ConfigurationError
from actgent.limits_and_schedules.limits import FORMS, OPTIONS, Limits

Count = Annotated[int, Parameter(validator=Number(gte=1))]
"""Option type: integer of at least 1."""
Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
"""Option type: text that may be given several times."""
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
"""Option type: true if the option is present."""
Argument = Annotated[str, Parameter(parse=False)]
"""Type of a field that a positional argument of the command sets, and no option."""
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""Option type: number from 0 to 1."""


def _option(name: str) -> Any:
    """Return an attrs field for the command-line option of the limit `name`.

    The option accepts whole numbers of at least 1 for a count, and positive numbers for other limits.
    """
    if FORMS[name]["type"] == "integer":
        kind: Any = Annotated[int, Parameter(validator=Number(gte=1), help=OPTIONS[name])]
    else:
        kind = Annotated[float, Parameter(validator=Number(gt=0), help=OPTIONS[name])]
    return attrs.field(default=None, type=kind | None)


@Parameter(name="*")
@attrs.frozen(kw_only=True, these={f"limit_{name}": _option(name) for name in OPTIONS})
class LimitOptions:
    """Options `--limit-NAME`, one for each field of `Limits`. They apply to the whole conversation, including child sessions."""

    @property
    def limits(self) -> Limits:
        """Return the limits that the options set."""
        return Limits(**{name: getattr(self, f"limit_{name}") for name in OPTIONS})


def to_limits(options: LimitOptions | None) -> Limits | None:
    """Convert the limit options to `Limits`. Return None if the user has set no limit option."""
    return None if options is None else options.limits


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ConversationOptions:
    """Options of `actgent run`."""

    file: Annotated[str | None, Parameter(parse=False)] = None
    """Agent folder, Python file or `FILE.py:NAME`; None makes a plain agent from the other options."""
    message: Annotated[str | None, Parameter(name=["--message", "-m"], allow_leading_hyphen=True)] = None
    """Send this message and exit; `-` reads the message from standard input."""
    attach: Repeated = ()
    """Image, PDF or text file to attach to the first message; may be given several times."""
    model: str | None = None
    """PROVIDER:MODEL, e.g. openai:MODEL, openai-responses:MODEL or anthropic:MODEL. Default: the agent's model, or found by
    the API keys in the environment.
    """
    base_url: str | None = None
    """URL of the provider's API, for any server with an OpenAI or Anthropic API."""
    limit_options: LimitOptions | None = None
    """Limits of the whole conversation."""
    journal: str | None = None
    """Journal that stores the conversation: a file, or postgres://HOST/DATABASE."""
    continue_latest: Annotated[bool, Parameter(name="--continue", negative=(), show_default=False)] = False
    """Resume the agent's latest open session in the journal."""
    session: str | None = None
    """Id of the session in the journal to resume, or to create."""
    json: Flag = False
    """Print one JSON object per line: replies, tool results, events and failures."""
    offline: Flag = False
    """Answer from a script instead of a model. Needs no API key."""

    @property
    def limits(self) -> Limits | None:
        """Limits of the whole conversation; None if the user gave no limit option."""
        return to_limits(self.limit_options)

    def for_agent(self, file: str | None, message: str | None) -> Self:
        """Return a copy with the agent file and the message that the user has passed as arguments.

        Raises:
            ConfigurationError: The message is also given as an option.
        """
        if message is not None and self.message is not None:
            raise ConfigurationError("the message is given twice: pass it as an argument or with --message")
        return attrs.evolve(self, file=file, message=self.message if message is None else message)


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ChatOptions(ConversationOptions):
    """Options of `actgent chat` and `actgent replay --fork`."""

    system: str | None = None
    """Complete system prompt of a plain agent, an agent without a file."""
    role: Annotated[str, Parameter(show_default=False)] = ""
    """Role of the agent in the default system prompt."""
    goal: Annotated[str, Parameter(show_default=False)] = ""
    """Goal of the agent in the default system prompt."""
    temperature: float | None = None
    """Sampling temperature. Default: set by the provider."""
    max_tokens: Count | None = None
    """Maximum number of tokens in one answer. Default: set by the provider."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class DemoOptions:
    """Options of `actgent demo`."""

    sessions: Count | None = None
    """Number of sessions of the load test. Default: 1000, or 20 with --live."""
    agents: Count = 10
    """Number of agents that share the sessions."""
    live: Flag = False
    """Call a real provider, selected by OPENAI_API_KEY, ANTHROPIC_API_KEY or LLM_PROVIDER_URL. This costs money."""
    model: str | None = None
    """Model to call with --live, e.g. openai:gpt-5.2."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class GoalOptions:
    """Options of `actgent goal`."""

    tools: Repeated = ()
    """Python file with tools; may be given several times."""
    search_dir: Repeated = ()
    """Folder to search for NAME.tools.py, and for NAME.output.py with `output_schema`; may be given several times."""
    recursive: bool = True
    """Also search the subfolders of the search folders."""
    output: str | None = None
    """JSON Schema of the answer: a Python file with `output_schema` (a type or a schema), or a JSON file with a schema."""
    model: str | None = None
    """PROVIDER:MODEL. Default: LLM_MODEL, TAGENT_MODEL, or found by the API keys in the environment. LLM_PLANNER_MODEL
    and similar variables set the model of one role.
    """
    base_url: str | None = None
    """URL of the provider's API."""
    max_iterations: Count = 20
    """Maximum number of model calls."""
    verbose: Flag = False
    """Print decisions, tool calls and state changes on standard error."""
    json: Flag = False
    """Print the result with status and metrics as one line of JSON."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class EvalOptions:
    """Options of `actgent eval`."""

    agent: str | None = None
    """Agent folder, or Python file that defines an agent. With --from-journal, the agent's name."""
    model: Repeated = ()
    """Model of the agent, e.g. openai:gpt-5.2; may be given several times to compare models."""
    prompt: Repeated = ()
    """File with a prompt that replaces the text of brain.md; may be given several times to compare prompts."""
    runs: Count = 1
    """Number of runs of each case."""
    concurrency: Count = 8
    """Maximum number of concurrent runs."""
    judge: str | None = None
    """Model that judges the answers to cases with a `judge`."""
    case: Repeated = ()
    """Run only cases with this name, part of a name, or tag; may be given several times."""
    threshold: Share = 1.0
    """Minimum share of runs that must pass, for each model and prompt, from 0 to 1."""
    html: str | None = None
    """Write an HTML report with all answers to this file."""
    json: str | None = None
    """Write a JSON report with all metrics and answers to this file."""
    history: Flag = False
    """Store the JSON report next to the .jsonl file of cases, where `actgent serve --datasets` finds it."""
    offline: Flag = False
    """Answer from a script instead of a model. Needs no API key."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class CiOptions:
    """Options of `actgent ci`."""

    code: str | None = None
    """The agents: agent folder, Python file, or FILE.py:NAME. Default: the plain agent of `actgent chat`."""
    agent: str | None = None
    """Compare only sessions of this agent."""
    session: str | None = None
    """Id of the only session to compare. Default: all sessions."""
    limit: Count = 100
    """Maximum number of sessions to compare, latest first."""
    model: Repeated = ()
    """Model to compare, e.g. openai:gpt-5.2; may be given several times. Default: the agent's model."""
    prompt: Repeated = ()
    """File with a prompt that replaces the text of brain.md or the system prompt; may be given several times."""
    concurrency: Count = 8
    """Maximum number of sessions that are compared at the same time."""
    threshold: Share = 1.0
    """Required share of answers and tool calls that equal the recorded ones, for each model and prompt, from 0 to 1."""
    html: str | None = None
    """Write an HTML report with all differences to this file."""
    json: str | None = None
    """Write a JSON report with all decisions to this file."""
    offline: Flag = False
    """Call no model; check only that the agent's code still leads to each recorded decision. Needs no API key."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class PipelineOptions:
    """Options of `actgent pipeline run`. The other commands for pipelines take some of them."""

    file: Argument = ""
    """YAML or JSON file, Python file, or `FILE.py:NAME`."""
    values: Annotated[Repeated, Parameter(name="--input")] = ()
    """Text input as NAME=VALUE; may be given several times."""
    inputs: str | None = None
    """All inputs of the pipeline as a JSON object."""
    run: str | None = None
    """Id of the run. An existing run is joined, or its result is printed. Default: a new id."""
    journal: str | None = None
    """Journal that stores the run: a file, or postgres://HOST/DATABASE."""
    agents: str | None = None
    """Path of the agents that the pipeline file (YAML or JSON) names: a Python file, or a folder of agent folders."""
    model: str | None = None
    """Model of steps with a goal, e.g. openai:gpt-5.2."""
    limit_options: LimitOptions | None = None
    """Limits of the whole pipeline run."""
    json: Flag = False
    """Print the result as one line of JSON."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ReplayOptions:
    """Options of `actgent replay`."""

    journal: Argument = ""
    """File or URL of the journal with the recorded session."""
    session: Argument = ""
    """Id of the recorded session."""
    agent: str | None = None
    """Name of the session's agent, if several agents have a session with this id."""
    to: Count | None = None
    """Number of the last record to replay; `actgent inspect --steps` lists the numbers. Default: all records."""
    code: str | None = None
    """Agent to run: agent folder, Python file that defines an agent, or FILE.py:NAME."""
    fork: str | None = None
    """Id of the new session that continues from the last replayed record."""
    message: str | None = None
    """With --fork, the message to send to the new session. Default: only resume an unfinished turn."""
    model: str | None = None
    """With --fork, the model of an agent folder or plain agent."""
    base_url: str | None = None
    """With --fork, the URL of the provider's API."""
    system: str | None = None
    """With --fork and without --code, the complete system prompt."""

    @property
    def chat(self) -> ChatOptions:
        """Chat options that select the agent to run and its model."""
        return ChatOptions(
            file=self.code, model=self.model, base_url=self.base_url, system=self.system, message=self.message
        )


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class SimulateOptions:
    """Options of `actgent simulate`."""

    program: Argument = ""
    """Python file that defines the agents."""
    seeds: Count = 1000
    """Number of seeds to run."""
    start: int = 0
    """Number of the first seed."""
    seed: str | None = None
    """Run one seed and print all its events: SEED, or SEED:DIGEST from a report."""
    duration: Annotated[str | None, Parameter(name="--for")] = None
    """Time limit of the whole command, e.g. 30s, 10m or 2h."""
    jobs: Count | None = None
    """Number of processes. Default: the number of cores."""
    sessions: Count = 3
    """Maximum number of sessions in the run of one seed."""
    faults: str = "all"
    """Kinds of faults that may happen, separated by commas, such as kill,tool; or `all`, or `none`. The guide lists the kinds."""
    always: str = ""
    """Kinds of faults that each seed has, separated by commas. Without this option, each seed has only some kinds."""
    journal: str = "memory"
    """Storage of the sessions: memory, or sqlite on a simulated disk whose power can fail."""
    say: Repeated = ()
    """Text that callers send to the agents; may be given several times. Default: "message 1", "message 2" ..."""
    own_models: Flag = False
    """Use the models of the program instead of random ones, e.g. a ScriptedLLM."""
    twice: Flag = False
    """Run each seed twice, and report seeds whose runs differ."""
    json: str | None = None
    """Write a report with all failures to this file."""
    junit: str | None = None
    """Write a report in the JUnit format to this file."""
    save: str = "tests/seeds"
    """Folder for failing seeds, which the pytest plugin runs again."""


def is_message_text(argument: str) -> bool:
    """Return True if the only argument of `actgent chat` is a message: it has several words and is no existing file."""
    return (
        len(argument.split()) > 1
        and not Path(argument.partition(":")[0]).exists()
        and not argument.endswith(".py")
    )
