"""Types of command-line options, and the options of `goal`, `eval` and `ci`."""

from typing import Annotated

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

Count = Annotated[int, Parameter(validator=Number(gte=1))]
"""Option type: integer of at least 1."""
Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
"""Option type: text that may be given several times."""
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
"""Option type: true if the option is present."""
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
"""Option type: number from 0 to 1."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class GoalOptions:
    """Options of `actgent goal`."""

    tools: Repeated = ()
    """Python file with tools; may be given several times."""
    search_dir: Repeated = ()
    """Folder to search for NAME.tools.py, and for NAME.output.py with `output_schema`; may be given several times."""
    recursive: bool = True
    """Search subfolders also."""
    output: str | None = None
    """Schema of the answer: a Python file with `output_schema` (a type or a schema), or a JSON file with a schema."""
    model: str | None = None
    """PROVIDER:MODEL. Default: LLM_MODEL, TAGENT_MODEL, or found by the API keys in the environment. LLM_PLANNER_MODEL
    and similar variables set the model of one role.
    """
    base_url: str | None = None
    """URL of the provider's API."""
    max_iterations: Count = 20
    """Maximum number of model calls."""
    verbose: Flag = False
    """Print decisions, calls and state changes on standard error."""
    json: Flag = False
    """Print the result with status and metrics as one line of JSON."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class EvalOptions:
    """Options of `actgent eval`."""

    agent: str | None = None
    """Agent folder, or Python file that defines an agent. With --from-journal, the agent's name."""
    model: Repeated = ()
    """Model to call, e.g. openai:gpt-5.2; give several to compare them."""
    prompt: Repeated = ()
    """File with a prompt that replaces the text of brain.md; give several to compare them."""
    runs: Count = 1
    """Number of runs of each case."""
    concurrency: Count = 8
    """Maximum number of concurrent runs."""
    judge: str | None = None
    """Model that judges answers, for cases with a `judge`."""
    case: Repeated = ()
    """Run only cases with this name, part of a name, or tag; may be given several times."""
    threshold: Share = 1.0
    """Share of runs that must pass, for each model and prompt, from 0 to 1."""
    html: str | None = None
    """Write an HTML report with all answers to this file."""
    json: str | None = None
    """Write a JSON report with all metrics and answers to this file."""
    history: Flag = False
    """Store the JSON report next to the .jsonl file of cases, for `actgent serve --datasets`."""
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
    """Compare only this session."""
    limit: Count = 100
    """Maximum number of sessions, latest first."""
    model: Repeated = ()
    """Model to ask, e.g. openai:gpt-5.2; give several to compare them. Default: the agent's model."""
    prompt: Repeated = ()
    """File with a prompt that replaces the text of brain.md or the system prompt; give several to compare them."""
    concurrency: Count = 8
    """Maximum number of sessions that are compared at the same time."""
    threshold: Share = 1.0
    """Share of decisions that must be the same, for each model and prompt, from 0 to 1."""
    html: str | None = None
    """Write an HTML report with all differences to this file."""
    json: str | None = None
    """Write a JSON report with all decisions to this file."""
    offline: Flag = False
    """Ask no model; check only that the agent's code still leads to each recorded decision. Needs no API key."""
