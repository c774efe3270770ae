"""tau2-bench: an agent and a simulated user with tools make the true actions of its tasks.

tau2-bench publishes domains (a shop, a telephone company, a bank) with tools that change a database, tasks, and the
actions that solve each task. In two of the domains the user also acts, for example with a telephone. Here an agent
with a scripted model makes the actions of the assistant, and a `SimulatedUser` with a scripted model makes those of
the user. Both databases are compared with those of tau2-bench's environment after the same actions.
"""

import importlib
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent import (
    BareAgent,
    Limits,
    ModelRequest,
    Runtime,
    ScriptedLLM,
    Tool,
    ToolCall,
    ToolHooks,
    open_runtime,
    tool,
)
from actgent.errors import ActgentError
from actgent.evaluation import SimulatedUser

from .tables import REFERENCE_S, Progress, Source, Table, fixed_loop

DOMAINS = ("retail", "telecom", "banking_knowledge")
SOURCE = Source(
    title="tau2-bench, sierra-research/tau2-bench at a2c02472 or later",
    files=(
        *(f"data/tau2/domains/{domain}/db.*" for domain in DOMAINS),
        *(f"src/tau2/domains/{domain}/tools.py" for domain in DOMAINS),
        "deps/loguru/__init__.py",
        "deps/pandas/__init__.py",
        "deps/deepdiff/__init__.py",
        "deps/addict/__init__.py",
        "deps/toml/__init__.py",
        "deps/dotenv/__init__.py",
    ),
    origin=(
        "the public repository sierra-research/tau2-bench on GitHub, unpacked to MATERIAL/tau2, and "
        "pip install --target MATERIAL/tau2/deps loguru pandas deepdiff addict toml pyyaml python-dotenv"
    ),
    licence="MIT",
)
MODEL_CALLS = 100
SIDE_BY_SIDE = 10
QUICK = 10
"""Step between the tasks of a quick run."""
MAX_TURNS = 200


@attrs.frozen
class Action:
    """One true action of a task."""

    by_user: bool
    name: str
    arguments: Mapping[str, Any]


@attrs.frozen
class Domain:
    """One domain: its tasks and the function that creates its environment."""

    name: str
    tasks: Sequence[Any]
    make: Callable[[Any], Any]
    """Function that returns a new environment in the initial state of a task."""


# ---- The material


def open_material(folder: Path) -> dict[str, Domain]:
    """Import tau2-bench from the folder, without its runner, which needs clients of many providers."""
    os.environ["TAU2_DATA_DIR"] = str(folder / "data")
    if "tau2" not in sys.modules:
        sys.path.append(str(folder / "deps"))
        package = types.ModuleType("tau2")
        package.__path__ = [str(folder / "src" / "tau2")]
        sys.modules["tau2"] = package
    importlib.import_module("loguru").logger.remove()
    return {domain.name: domain for domain in (_retail(), _telecom(), _banking())}


def _retail() -> Domain:
    module = importlib.import_module("tau2.domains.retail.environment")
    database = module.RetailDB.load(module.RETAIL_DB_PATH)
    return Domain(
        "retail",
        module.get_tasks(),
        lambda task: _in_state(module.get_environment(database.model_copy(deep=True)), task),
    )


def _telecom() -> Domain:
    module = importlib.import_module("tau2.domains.telecom.environment")
    return Domain("telecom", _telecom_tasks(module), lambda task: _in_state(module.get_environment(), task))


def _telecom_tasks(environment: Any) -> list[Any]:
    """Return the tasks of the split `base`, which tau2-bench's code creates from their names."""
    utils, const = (
        importlib.import_module(f"tau2.domains.telecom.tasks.{name}") for name in ("utils", "const")
    )
    managers = [
        getattr(importlib.import_module(f"tau2.domains.telecom.tasks.{module}"), name)
        for module, name in (
            ("mobile_data_issues", "mobile_data_task_manager"),
            ("service_issues", "service_issues_task_manager"),
            ("mms_issues", "mms_issue_task_manager"),
        )
    ]
    wanted, personas = set(environment.get_tasks_split()["base"]), list(const.PERSONAS)
    found = []
    for manager in managers:
        composed = utils.compose_tasks(manager.selection_sets, manager.task_validator)
        for number, each in enumerate(sorted(composed, key=lambda one: len(one.composed_from))):
            persona = personas[number % len(personas)]
            if f"[{manager.name}]{each.name}[PERSONA:{persona}]" in wanted:
                found.append(manager.create_task(each, persona))
    return found


def _banking() -> Domain:
    module = importlib.import_module("tau2.domains.banking_knowledge.environment")
    tools = importlib.import_module("tau2.domains.banking_knowledge.tools")
    base = importlib.import_module("tau2.environment.environment")

    def make(task: Any) -> Any:
        # The tools that search the bank's documents need services, and no true action calls them.
        database = module.get_db()
        kit = tools.KnowledgeTools(database)
        kit.set_read_log_allowlist(
            {action.arguments.get("agent_tool_name") for action in task.evaluation_criteria.actions or ()}
        )
        user_kit = module.KnowledgeUserTools(database)
        return _in_state(base.Environment("banking_knowledge", "You work for a bank.", kit, user_kit), task)

    return Domain("banking_knowledge", module.get_tasks(), make)


def _in_state(environment: Any, task: Any) -> Any:
    """Set an environment to the initial state of a task, as tau2-bench does."""
    state = task.initial_state
    environment.set_state(
        initialization_data=None if state is None else state.initialization_data,
        initialization_actions=None if state is None else state.initialization_actions,
        message_history=[],
    )
    return environment


def actions_of(task: Any) -> list[Action]:
    """Return the true actions of a task, in order."""
    return [
        Action(action.requestor == "user", action.name, action.arguments)
        for action in task.evaluation_criteria.actions or ()
    ]


def states_of(environment: Any) -> tuple[Any, Any]:
    """Return the hashes of the databases of assistant and user, computed by tau2-bench's functions."""
    return environment.get_db_hash(), environment.get_user_db_hash()


def unmet(environment: Any, task: Any) -> int:
    """Return the number of assertions of a task that fail in an environment."""
    assertions = task.evaluation_criteria.env_assertions or ()
    return sum(not environment.run_env_assertion(each, raise_assertion_error=False) for each in assertions)


def make_true_actions(environment: Any, actions: Sequence[Action]) -> int:
    """Make the true actions in tau2-bench's environment. Return the number of actions that raise."""
    raised = 0
    for action in actions:
        try:
            environment.make_tool_call(
                tool_name=action.name, requestor="user" if action.by_user else "assistant", **action.arguments
            )
        except Exception:  # noqa: BLE001 - some true actions are refused by their tools
            raised += 1
        environment.sync_tools()
    return raised


# ---- Agent and user


def tools_of(environment: Any, kit: Any) -> list[Tool]:
    """Return the unchanged tools of a kit. After each call, the environment connects both databases."""
    hooks = ToolHooks(on_success=lambda *_: environment.sync_tools())
    return [tool(getattr(kit, name), hooks=hooks) for name in kit.get_tools()] if kit is not None else []


def split_by_turn(actions: Sequence[Action]) -> list[tuple[list[Action], list[Action]]]:
    """Return the actions by turn: those of the user before the message, and those of the assistant before the answer."""
    turns: list[tuple[list[Action], list[Action]]] = [([], [])]
    for by_user, group in groupby(actions, key=lambda action: action.by_user):
        if by_user:
            turns.append((list(group), []))
        else:
            turns[-1][1].extend(group)
    return turns


def acting_model(
    groups: Sequence[Sequence[Action]], say: Callable[[int], str]
) -> Callable[[ModelRequest], Any]:
    """Return a model that makes the actions of each turn, one per answer, and then sends a text."""

    def answer(chat: ModelRequest) -> Any:
        roles = [message.role for message in chat.messages][::-1]
        if roles[0] == "user" and roles[1:2] in (["user"], ["tool"]):
            del roles[0]  # the response format, at the end of each request of the user's model
        turn, made = roles.count("user") - 1, roles[: roles.index("user")].count("tool")
        actions = groups[turn] if turn < len(groups) else ()
        if made == len(actions):
            return say(turn)
        return ToolCall(actions[made].name, dict(actions[made].arguments), id=f"t{turn}c{made}")

    return answer


def user_line(turn: int, last: int) -> str:
    """Return the message of the user after the actions of a turn. After the last turn, the message ends the conversation."""
    return json.dumps(
        {"message": "I did that. What is next?" if turn else "I need help.", "achieved": turn > last}
    )


@attrs.define
class Played:
    """Results of the tasks of a domain."""

    tasks: int = 0
    actions: int = 0
    user_actions: int = 0
    raised: int = 0
    """True actions that raise in tau2-bench's own environment."""
    wrong: list[str] = attrs.field(factory=list)
    """Tasks with a different database of assistant or user."""
    unmet: list[str] = attrs.field(factory=list)
    """Tasks with an assertion that is true in tau2-bench's environment and false after our run."""
    achieved: int = 0
    errors: list[str] = attrs.field(factory=list)
    cpu_s: float = 0.0
    journal_bytes: int = 0


async def play(domain: Domain, task: Any, runtime: Runtime, found: Played) -> None:
    """Play one task, and compare both databases with those of tau2-bench's environment."""
    actions, gold, ours = actions_of(task), domain.make(task), domain.make(task)
    found.raised += make_true_actions(gold, actions)
    turns = split_by_turn(actions)
    agent = BareAgent(
        f"{domain.name}-{found.tasks}",
        llm=ScriptedLLM(
            acting_model([ours_of for _, ours_of in turns], lambda _: "Done. Anything else?"), keep=0
        ),
        system_prompt=ours.policy,
        tools=tools_of(ours, ours.tools),
        limits=Limits(model_calls=MODEL_CALLS, max_repeated_calls=MODEL_CALLS),
    )
    found.tasks += 1
    found.actions += len(actions)
    found.user_actions += sum(action.by_user for action in actions)
    user_model = acting_model([theirs for theirs, _ in turns], lambda turn: user_line(turn, len(turns) - 1))
    user = SimulatedUser(
        str(task.user_scenario),
        llm=ScriptedLLM(user_model, keep=0),
        max_turns=MAX_TURNS,
        **_user_options(ours),
    )
    await runtime.start(agent)
    try:
        simulation = await user.talk_to(agent, await agent.create_session("ada"))
        found.achieved += simulation.achieved
    except ActgentError as error:
        found.errors.append(f"{task.id}: {type(error).__name__}: {error}")
    runtime.stop(agent.name)
    if states_of(ours) != states_of(gold):
        found.wrong.append(str(task.id))
    if unmet(ours, task) > unmet(gold, task):
        found.unmet.append(str(task.id))


def _user_options(environment: Any) -> dict[str, Any]:
    if environment.user_tools is None:
        return {}
    return {
        "tools": tools_of(environment, environment.user_tools),
        "limits": Limits(model_calls=MODEL_CALLS, max_repeated_calls=MODEL_CALLS),
    }


async def play_all(domain: Domain, tasks: Sequence[Any], progress: Progress) -> Played:
    """Play tasks concurrently, with a journal in SQLite."""
    found, places, loop, began = (
        Played(),
        trio.CapacityLimiter(SIDE_BY_SIDE),
        fixed_loop(),
        time.process_time(),
    )
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            open_runtime(journal=f"sqlite:///{scratch}/agents.db") as runtime,
            trio.open_nursery() as nursery,
        ):

            async def one(task: Any) -> None:
                async with places:
                    await play(domain, task, runtime, found)
                    progress(f"{domain.name}: {found.tasks} of {len(tasks)}")

            for task in tasks:
                nursery.start_soon(one, task)
        found.journal_bytes = sum(path.stat().st_size for path in Path(scratch).glob("*.db"))
    found.cpu_s = (time.process_time() - began) * REFERENCE_S * 2 / (loop + fixed_loop())
    return found


# ---- Tables


async def run(folder: Path, *, progress: Progress, quick: bool) -> list[Table]:
    """Play all tasks of all domains."""
    rows = [
        (domain.name, await play_all(domain, domain.tasks[:: QUICK if quick else 1], progress))
        for domain in open_material(folder).values()
    ]
    return [make_table(rows)]


def make_table(rows: Sequence[tuple[str, Played]]) -> Table:
    """Return the table of all domains, with the missed bars."""
    failures = [
        f"{name}: {text}"
        for name, found in rows
        for text in (
            *(f"the databases of task {task} differ" for task in found.wrong),
            *(f"task {task} is not solved" for task in found.unmet),
            *(f"task {error}" for error in found.errors),
        )
    ]
    return Table(
        title=f"{SOURCE.title}: reference actions of all tasks",
        heads=(
            "domain",
            "tasks",
            "actions",
            "actions of the user",
            "actions that tau2-bench's own tools reject",
            "tasks with equal databases",
            "tasks with the same assertions true",
            "tasks that the user ended as achieved",
            "journal per task, KB",
        ),
        rows=tuple(
            (
                name,
                str(found.tasks),
                f"{found.actions:,}",
                str(found.user_actions),
                str(found.raised),
                f"{found.tasks - len(found.wrong)} of {found.tasks}",
                f"{found.tasks - len(found.unmet)} of {found.tasks}",
                f"{found.achieved} of {found.tasks}",
                f"{found.journal_bytes / found.tasks / 1000:.1f}",
            )
            for name, found in rows
        ),
        note="Requirements: the databases of the assistant and of the user are equal, and the same number of assertions hold as in tau2-bench.",
        failures=tuple(failures),
    )
