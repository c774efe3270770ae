"""`actgent new`, `check` and `run`: agents as folders of readable files."""

from functools import partial
from pathlib import Path

from actgent.agents.agent import Agent
from actgent.agents.builder import AgentBuilder
from actgent.definitions.instructions import BRAIN, read_folder
from actgent.definitions.scaffold import new_folder
from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder, MissingKey
from actgent.evaluation.loading import SUFFIXES, TESTS, load_cases
from actgent.llm.scripted import ScriptedLLM
from actgent.llm.settings import LLMSettings, load_settings

from .demos.offline import stand_in
from .models import live_models
from .programs import load_agents
from .terminal import Terminal


def new(name: str, terminal: Terminal, *, protocol: str = "simple") -> int:
    """Make a folder, in the current one where its name has no path."""
    path = Path(name)
    made = new_folder(path.parent, path.name, protocol=protocol)
    keyless = "" if protocol == "goal" else "; without a key both with --offline"
    terminal.line(
        f"made {made.path}: try `actgent check {name}`, its test with pytest, `actgent run {name}`, and its case with "
        f"`actgent eval {name}`{keyless}"
    )
    return 0


def check(folder: str, terminal: Terminal) -> int:
    """Say what a folder holds, or each of those in it; what is wrong with them leaves as InvalidFolder."""
    problems = list[InvalidFile]()
    for each in _below(folder) or [Path(folder)]:
        try:
            terminal.line(_checked(str(each)))
        except InvalidFolder as error:
            problems += error.problems
    if problems:
        raise InvalidFolder(problems)
    return 0


def _checked(folder: str) -> str:
    read = read_folder(folder)
    load_settings(read.llm).check_model()
    forms = ", ".join(instruction.name for instruction in read.instructions) or "none"
    skills = ", ".join(skill.name for skill in read.skills) or "none"
    cases = _count_cases(read.path)
    holds = [f"instructions: {forms}", f"skills: {skills}", f"cases: {cases}"]
    for what, names in (("APIs", read.documents), ("MCP servers", read.servers)):
        holds += [f"{what}: {', '.join(names)}"] if names else []
    return f"{folder}: agent {read.name!r} is fine ({'; '.join(holds)})"


def _count_cases(folder: Path) -> int:
    """Return how many cases stand below its `tests`, all of which are read; what is wrong with one is an error."""
    tests = folder / TESTS
    has_some = tests.is_dir() and any(path.suffix in SUFFIXES for path in tests.iterdir())
    return len(load_cases(tests)) if has_some else 0


def is_folder(place: str) -> bool:
    """Return True if this names an agent's folder, or its brain.md, and no Python file."""
    return Path(place).is_dir() or Path(place).name == BRAIN


def load_folder(
    place: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    offline: bool = False,
    option: bool = True,
    is_asked: bool = True,
) -> Agent:
    """The agent of a folder; where nobody names a model, with the one that the environment has a key for.

    With `offline` a script answers in the form that the agent's protocol reads. `option` is that of `live_models`.
    Where `is_asked` is False, no model will be asked, so that neither a key nor a model's name has to be there.

    Raises:
        InvalidFolder: something is wrong in it.
        ConfigurationError: no model is named, or a setting is wrong.
    """
    if offline:
        script, fit = stand_in()
        agent = AgentBuilder.from_folder(place).llm(script).build()
        fit(agent)
        return agent
    builder = AgentBuilder.from_folder(place).llm(model, base_url=base_url)
    settings = builder.settings()
    if isinstance(settings, LLMSettings) and not settings.model:
        builder = builder.llm(_unnamed(place, option=option) if is_asked else ScriptedLLM([]))
    try:
        return builder.build()
    except MissingKey:
        if is_asked:
            raise
        return builder.llm(api_key="none").build()


def _unnamed(place: str, *, option: bool) -> str:
    """The model of a folder that names none."""
    wanted = f"set LLM_MODEL, or write `llm:` into its brain.md; `actgent run {place} --offline` tries it without a model"
    return live_models(None, otherwise=wanted, option=option)[0]


def agents_at(target: str, *, is_asked: bool = True, offline: bool = False) -> list[Agent]:
    """Return the agents of a Python file, of a folder, or of the folders in one.

    `is_asked` and `offline` are those of `load_folder`.

    Raises:
        ConfigurationError: The target has no agents, or they cannot be read; or it is a Python file and `offline` is True.
    """
    load = partial(load_folder, option=False, is_asked=is_asked, offline=offline)
    if is_folder(target) and not Path(target).is_dir():
        return [load(target)]
    if not Path(target).is_dir():
        if offline:
            raise ConfigurationError(f"{target} names its own models: --offline is for agents' folders")
        return load_agents(target)
    if (Path(target) / BRAIN).is_file():
        return [load(target)]
    if not (found := _below(target)):
        raise ConfigurationError(
            f"{target} is no agent's folder, and has none in it: it needs a {BRAIN} (`actgent new NAME` makes a folder)"
        )
    return [load(str(each)) for each in found]


def _below(target: str) -> list[Path]:
    """The agents' folders in a folder that is none itself."""
    if (Path(target) / BRAIN).is_file():
        return []
    return sorted(each.parent for each in Path(target).glob(f"*/{BRAIN}"))
