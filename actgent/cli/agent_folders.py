"""Agents in folders with a `brain.md`: `actgent new`, `actgent check`, and loading folders for other commands."""

import sys
from functools import partial
from pathlib import Path

from actgent.agents.agent import Agent
from actgent.agents.agent_builder import AgentBuilder
from actgent.cli.demos.scripted_models import offline_model
from actgent.definitions.agent_folder import BRAIN, AgentFolder, read_folder
from actgent.definitions.folder_creation import new_folder
from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder, MissingKey
from actgent.evaluation.case_files import SUFFIXES, TESTS, load_cases
from actgent.llm.model_settings import LLMSettings, load_settings
from actgent.llm.scripted_model import ScriptedLLM

from .agents_in_python_files import load_agents
from .model_selection import live_models
from .prompt_injection_policy_warnings import policy_warnings
from .terminal_io import Terminal


def new(name: str, terminal: Terminal, *, protocol: str = "simple") -> int:
    """Create an agent folder with a small agent and its test, and print the next commands.

    Args:
        name: Path of the new folder.
        terminal: Output of the command.
        protocol: Name of the protocol by which the agent exchanges messages with its model.
    """
    path = Path(name)
    made = new_folder(path.parent, path.name, protocol=protocol)
    keyless = "" if protocol == "goal" else "; without an API key, run the last two with --offline"
    terminal.line(
        f"created {made.path}: try `actgent check {name}`, `pytest {name}`, `actgent run {name}` and "
        f"`actgent eval {name}`{keyless}"
    )
    return 0


def check(target: str, terminal: Terminal) -> int:
    """Check agents, and print a summary of each.

    The target is an agent folder, a folder of agent folders, or a Python file, which is executed. Missing declarations
    against prompt injection are printed as warnings.

    Raises:
        InvalidFolder: One or more folders are invalid; `problems` lists all errors.
        ConfigurationError: The Python file cannot be run or defines no agent.
    """
    if target.partition(":")[0].endswith(".py") and not is_folder(target):
        for agent in load_agents(target):
            terminal.line(f"{target}: agent {agent.name!r} is fine (tools: {_tool_names(agent)})")
            for each in policy_warnings(agent):
                terminal.line(f"{target}: warning: {each}")
        return 0
    problems = list[InvalidFile]()
    for folder in _agent_folders_in(target) or [Path(target)]:
        try:
            read = read_folder(folder)
            terminal.line(_describe_folder(str(folder), read))
            if (warning := _missing_policy(read)) is not None:
                terminal.line(f"{folder}: warning: {warning}")
        except InvalidFolder as error:
            problems += error.problems
    if problems:
        raise InvalidFolder(problems)
    return 0


def _tool_names(agent: Agent) -> str:
    return ", ".join(each.name for each in (*agent.tools, *agent.toolsets)) or "none"


def _missing_policy(folder: AgentFolder) -> str | None:
    """Return a warning if an agent folder has toolsets with untrusted results but no policy; None without a warning."""
    toolsets = ", ".join((*folder.documents, *folder.servers))
    if folder.policy is not None or not toolsets:
        return None
    return f"agent {folder.name!r} has no policy, and the model reads untrusted text of {toolsets}: write `policy: {{}}` into {BRAIN}"


def _describe_folder(folder: str, read: AgentFolder) -> str:
    """Check the model settings and evaluation cases of an agent folder, and return a line that summarizes the folder."""
    load_settings(read.llm).check_model()
    forms = ", ".join(instruction.name for instruction in read.instructions) or "none"
    skills = ", ".join(skill.name for skill in read.skills) or "none"
    tests = read.path / TESTS
    has_some = tests.is_dir() and any(path.suffix in SUFFIXES for path in tests.iterdir())
    # Reads all cases, so an invalid case raises.
    cases = len(load_cases(tests)) if has_some else 0
    holds = [f"instructions: {forms}", f"skills: {skills}", f"cases: {cases}"]
    for what, names in (("APIs", read.documents), ("MCP servers", read.servers)):
        holds += [f"{what}: {', '.join(names)}"] if names else []
    return f"{folder}: agent {read.name!r} is fine ({'; '.join(holds)})"


def is_folder(target: str) -> bool:
    """Return True if the target is a folder or a `brain.md` file."""
    return Path(target).is_dir() or Path(target).name == BRAIN


def load_folder(
    target: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    offline: bool = False,
    has_model_option: bool = True,
    needs_model: bool = True,
) -> Agent:
    """Build the agent of an agent folder. Without a configured model, use the default model of the environment.

    Args:
        target: Path of the agent folder or its `brain.md`.
        model: `PROVIDER:MODEL`; overrides the folder's model.
        base_url: URL of the provider's API; overrides the URL in the folder.
        offline: True to use a scripted model, whose answers have the form that the agent's protocol reads.
        has_model_option: True if the command has an option `--model` that error messages can mention.
        needs_model: False if no model will be called; then neither a model name nor an API key is required.

    Raises:
        InvalidFolder: The folder has an invalid file.
        ConfigurationError: No model is named, or a setting is invalid.
    """
    if offline:
        script, fit = offline_model()
        agent = AgentBuilder.from_folder(target).llm(script).build()
        fit(agent)
        return agent
    builder = AgentBuilder.from_folder(target).llm(model, base_url=base_url)
    settings = builder.settings()
    if isinstance(settings, LLMSettings) and not settings.model:
        builder = builder.llm(
            _default_model(target, has_model_option=has_model_option) if needs_model else ScriptedLLM([])
        )
    try:
        return builder.build()
    except MissingKey:
        if needs_model:
            raise
        return builder.llm(api_key="none").build()


def _default_model(target: str, *, has_model_option: bool) -> str:
    """Return the default model of the environment for an agent folder that names no model.

    Raise `ConfigurationError` if the environment configures no model.
    """
    hint = f"set LLM_MODEL, or write `llm:` into its brain.md; `actgent run {target} --offline` tries it without a model"
    return live_models(None, hint=hint, has_model_option=has_model_option)[0]


def agents_at(target: str, *, needs_model: bool = True, offline: bool = False) -> list[Agent]:
    """Return the agents of a Python file, of an agent folder, or of all agent folders inside a folder.

    Args:
        target: Path of the Python file or folder.
        needs_model: False if no model will be called; then neither a model name nor an API key is required.
        offline: True to use a scripted model; only for agent folders.

    Raises:
        ConfigurationError: The target has no agents, the agents cannot be loaded, or `offline` is used with a
            Python file.
    """
    load = partial(load_folder, has_model_option=False, needs_model=needs_model, offline=offline)
    if is_folder(target) and not Path(target).is_dir():
        return [load(target)]
    if not Path(target).is_dir():
        if offline:
            raise ConfigurationError(
                f"{target} chooses its own models: --offline works only with agent folders"
            )
        return load_agents(target)
    if (Path(target) / BRAIN).is_file():
        return [load(target)]
    if not (found := _agent_folders_in(target)):
        raise ConfigurationError(
            f"{target} is neither an agent folder nor a folder of agent folders: an agent folder has a file {BRAIN} (`actgent new NAME` creates a folder)"
        )
    return [load(str(each)) for each in found]


def _agent_folders_in(target: str) -> list[Path]:
    """Return the agent folders directly in a folder, sorted by name; empty if the folder itself is an agent folder."""
    if (Path(target) / BRAIN).is_file():
        return []
    return sorted(each.parent for each in Path(target).glob(f"*/{BRAIN}"))


def exit_with_load_errors() -> None:
    """Load the agents of the target in `sys.argv[1]`. If that fails, print the error and exit with code 1.

    `actgent serve --reload` runs this function in a child process, so that an invalid file cannot stop the server. With
    `--offline` as second argument the agents have a scripted model.
    """
    try:
        agents_at(sys.argv[1], offline="--offline" in sys.argv[2:])
    except ConfigurationError as error:
        problems = error.problems if isinstance(error, InvalidFolder) else (error,)
        sys.exit("; ".join(map(str, problems)))
