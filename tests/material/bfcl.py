"""BFCL multi-turn: the tools of an agent make the true calls of 800 conversations, also with kills of the process.

BFCL publishes 8 classes with 128 functions, 800 conversations over objects of these classes, and the calls that a
model should make in each turn. Here the functions become tools, and a scripted model makes the true calls. The final
state of the objects is compared with the result of BFCL's harness (its `state_checker`).

The second part kills the process with SIGKILL at three points of each call: before its effect, between the effect and
the write of its result, and after that write. In this part, a database stores the objects, because a killed process
loses its objects.
"""

import ast
import importlib
import inspect
import json
import pickle
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent import (
    BareAgent,
    Database,
    Limits,
    ModelRequest,
    ScriptedLLM,
    Session,
    Tool,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.errors import ActgentError, DuplicateMessage
from actgent.messages import ToolResult

from .tables import REFERENCE_S, MaterialMissing, Progress, Source, Table, fixed_loop

KINDS = ("base", "miss_func", "miss_param", "long_context")
WRONG_TRUTH = "_173"
"""Suffix of the four conversations whose true calls pass a string for an argument that BFCL declares as int."""

SOURCE = Source(
    title="BFCL multi-turn, PyPI bfcl-eval 2026.3.23",
    files=(
        *(f"bfcl_eval/data/BFCL_v4_multi_turn_{kind}.json" for kind in KINDS),
        *(f"bfcl_eval/data/possible_answer/BFCL_v4_multi_turn_{kind}.json" for kind in KINDS),
        "bfcl_eval/eval_checker/multi_turn_eval/multi_turn_checker.py",
        "mpmath/__init__.py",
    ),
    origin="pip install --no-deps --target MATERIAL/bfcl bfcl-eval==2026.3.23 mpmath==1.3.0",
    licence="Apache 2.0",
)

MODEL_CALLS = 120
"""Model calls per turn. Two long conversations make 34 calls in one turn, and a model call that a kill interrupts counts
again; the default allows 25."""
SIDE_BY_SIDE = 50
"""Conversations that run at the same time in the first part."""
BATCH = 400
"""Conversations per process in the second part."""
PROCESSES = 2
"""Processes that run at the same time in the second part."""
QUICK = 40
"""Step between the conversations of a quick run."""
SESSION = "talk"
"""Id of the only session of each agent."""
CPU_BAR_MS = 20
JOURNAL_BAR_KB = 10
LIFE_TIMEOUT_S = 600
"""Seconds after which a process that neither waits for the kill nor ends counts as hanging."""
ROOT = Path(__file__).parents[2]


# ---- The material


@attrs.frozen
class Conversation:
    """One conversation of BFCL."""

    id: str
    classes: tuple[str, ...]
    """Names of the classes whose functions the conversation uses."""
    config: Mapping[str, Any]
    """Initial state per class."""
    texts: tuple[str, ...]
    """Messages of the user, one text per turn."""
    truth: tuple[tuple[str, ...], ...]
    """The true calls of each turn, as Python expressions."""

    @property
    def is_long(self) -> bool:
        """True if the objects have much more data."""
        return "long_context" in self.id


class Material:
    """BFCL's conversations and classes, imported from a folder."""

    def __init__(self, folder: Path) -> None:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        self.folder, self._data = folder, folder / "bfcl_eval" / "data"
        backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        self._paths: Mapping[str, str] = backend.CLASS_FILE_PATH_MAPPING
        self._stateless = backend.STATELESS_CLASSES
        self._harness_results: dict[str, tuple[list[str], dict[str, Any]]] = {}
        self.checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
        self._harness = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")

    def conversations(self) -> list[Conversation]:
        """Return all conversations, ordered by kind."""
        return [found for kind in KINDS for found in self._read(kind)]

    def _read(self, kind: str) -> Iterator[Conversation]:
        name = f"BFCL_v4_multi_turn_{kind}.json"
        questions = _lines(self._data / name)
        answers = {line["id"]: line["ground_truth"] for line in _lines(self._data / "possible_answer" / name)}
        for line in questions:
            yield Conversation(
                line["id"],
                tuple(line["involved_classes"]),
                line["initial_config"],
                tuple(_text(turn) for turn in line["question"]),
                tuple(tuple(turn) for turn in answers[line["id"]]),
            )

    def objects(self, conversation: Conversation) -> dict[str, Any]:
        """Return new objects of the classes of a conversation, by class name."""
        made = {name: self.make(name) for name in conversation.classes}
        for name, instance in made.items():
            if name not in self._stateless:
                config = json.loads(json.dumps(conversation.config.get(name, {})))
                instance._load_scenario(config, long_context=conversation.is_long)
        return made

    def make(self, class_name: str) -> Any:
        """Return a new object of one of BFCL's classes, without a scenario."""
        return getattr(importlib.import_module(self._paths[class_name]), class_name)()

    def harness_result(self, conversation: Conversation) -> tuple[list[str], dict[str, Any]]:
        """Return the result of BFCL's harness for the true calls: the result of each call, and the final objects.

        The harness stores its objects by conversation, so each conversation is run only once.
        """
        if conversation.id in self._harness_results:
            return self._harness_results[conversation.id]
        results: list[str] = []
        objects: dict[str, Any] = {}
        for turn in conversation.truth:
            made, objects = self._harness.execute_multi_turn_func_call(
                list(turn),
                conversation.config,
                list(conversation.classes),
                "truth",
                conversation.id,
                long_context=conversation.is_long,
            )
            results += made
        self._harness_results[conversation.id] = results, objects
        return results, objects

    def is_equal(self, objects: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
        """Return True if BFCL's check accepts the states of the objects as equal."""
        return bool(self.checker.state_checker(objects, truth)["valid"])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _text(turn: Sequence[Mapping[str, str]]) -> str:
    """Return the text of the user. In a turn without a text, BFCL only adds functions."""
    return "\n".join(message["content"] for message in turn) or "There are more functions now."


def functions(objects: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return the public methods of objects by name. The last object with a name is used, as in BFCL's harness."""
    return {
        name: method
        for instance in objects.values()
        for name, method in inspect.getmembers(instance, predicate=inspect.ismethod)
        if not name.startswith("_")
    }


def parse_call(text: str, methods: Mapping[str, Callable[..., Any]]) -> tuple[str, dict[str, Any]]:
    """Return name and keyword arguments of a call in a Python expression."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise MaterialMissing(f"{text!r} is not a call of a function")
    keywords = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
    names = list(inspect.signature(methods[call.func.id]).parameters)
    positional = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    return call.func.id, positional | keywords


# ---- The agent


def true_model(
    conversation: Conversation, methods: Mapping[str, Callable[..., Any]]
) -> Callable[[ModelRequest], Any]:
    """Return a model that makes the true calls of each turn, one per answer, and then sends a final text."""
    script = [[parse_call(text, methods) for text in turn] for turn in conversation.truth]

    def answer(chat: ModelRequest) -> Any:
        roles = [message.role for message in chat.messages]
        turn, made = roles.count("user") - 1, roles[::-1][: roles[::-1].index("user")].count("tool")
        if made == len(script[turn]):
            return "Done."
        name, arguments = script[turn][made]
        return ToolCall(name, arguments, id=f"t{turn}c{made}")

    return answer


def make_agent(conversation: Conversation, tools: Sequence[Tool], model: ScriptedLLM) -> BareAgent:
    """Return the agent of one conversation."""
    return BareAgent(
        conversation.id.removeprefix("multi_turn_"),
        llm=model,
        tools=tools,
        limits=Limits(model_calls=MODEL_CALLS),
    )


async def converse(conversation: Conversation, agent: BareAgent) -> Session:
    """Send all messages of the user, turn by turn, and return the session."""
    session = await agent.ensure_session("ada", SESSION)
    for number, text in enumerate(conversation.texts):
        with suppress(DuplicateMessage):  # by an earlier process
            await agent.run(text, session=session, message_id=f"m{number}")
    return session


def tool_results(session: Session) -> list[ToolResult]:
    """Return the results of all tool calls of a session, in order."""
    return [part for message in session.history for part in message.parts if isinstance(part, ToolResult)]


# ---- First part: all conversations, one process


@attrs.define
class Measured:
    """Results of the first part."""

    wrong: list[str] = attrs.field(factory=list)
    """Conversations whose final state differs."""
    statuses: Counter[str] = attrs.field(factory=Counter)
    """Calls by the status of their result."""
    equal_results: int = 0
    """Calls whose result equals the text of BFCL's harness."""
    calls: int = 0
    cpu_s: float = 0.0
    harness_cpu_s: float = 0.0
    journal_bytes: int = 0
    speed: float = 1.0
    """CPU time on the undisturbed machine of docs/benchmarks.md, for one second of CPU time here."""


async def measure(material: Material, conversations: Sequence[Conversation], progress: Progress) -> Measured:
    """Run the conversations with a journal in SQLite, and compare states and results with BFCL's harness."""
    loop, began = fixed_loop(), time.process_time()
    truths = {each.id: material.harness_result(each) for each in conversations}
    found = Measured(harness_cpu_s=time.process_time() - began)
    objects: dict[str, dict[str, Any]] = {}
    results: dict[str, list[ToolResult]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        began = time.process_time()
        async with (
            open_runtime(journal=f"sqlite:///{scratch}/agents.db") as runtime,
            trio.open_nursery() as nursery,
        ):
            places = trio.CapacityLimiter(SIDE_BY_SIDE)

            async def live(conversation: Conversation) -> None:
                async with places:
                    objects[conversation.id] = material.objects(conversation)
                    methods = functions(objects[conversation.id])
                    model = ScriptedLLM(true_model(conversation, methods), keep=0)
                    agent = make_agent(conversation, [tool(method) for method in methods.values()], model)
                    await runtime.start(agent)
                    with suppress(ActgentError):
                        await converse(conversation, agent)
                    results[conversation.id] = tool_results(await agent.ensure_session("ada", SESSION))
                    runtime.stop(agent.name)
                    progress(f"conversation {len(results)} of {len(conversations)}")

            for conversation in conversations:
                nursery.start_soon(live, conversation)
        found.cpu_s = time.process_time() - began
        found.speed = REFERENCE_S * 2 / (loop + fixed_loop())
        found.journal_bytes = sum(path.stat().st_size for path in Path(scratch).iterdir())
    for conversation in conversations:
        texts, truth = truths[conversation.id]
        if not material.is_equal(objects[conversation.id], truth):
            found.wrong.append(conversation.id)
        made = results.get(conversation.id, [])
        found.calls += len(texts)
        found.statuses.update(result.status for result in made)
        found.equal_results += sum(result.content == text for result, text in zip(made, texts, strict=False))
    return found


def is_same(content: str, text: str) -> bool:
    """Return True if a result equals the result of the harness. The harness writes values as Python does, and tools write JSON."""
    if content == text or (not content and text == "None"):
        return True
    with suppress(ValueError, SyntaxError):
        return bool(json.loads(content) == ast.literal_eval(text))
    return False


# ---- Second part: killed between each two calls

TABLES = """
CREATE TABLE objects (conversation TEXT NOT NULL PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE effects (conversation TEXT NOT NULL, call TEXT NOT NULL, name TEXT NOT NULL) STRICT;
"""
POINTS = ("before", "after", "between")
"""Points of each call at which the process is killed, in this order: before its effect, after its effect, and after the
write of its result."""


class DatabaseTool(Tool):
    """A function of BFCL with its object in a database: it reads the object, calls the function, and writes the object.

    All this is one transaction with the key of the call, so a repeated call after a kill has no further effect.
    """

    effect = "idempotent"
    timeout = LIFE_TIMEOUT_S  # a call waits for the kill until all other conversations also wait

    def __init__(
        self, method: Callable[..., Any], conversation: str, database: Database, stops: "Stops"
    ) -> None:
        made = tool(method)
        super().__init__(made.name, made.description)
        self.parameters = made.parameters
        self._owner = type(method.__self__).__name__  # type: ignore[attr-defined]
        self._conversation, self._database, self._stops = conversation, database, stops

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        def work(db: Any) -> str:
            [row] = db.query("SELECT state FROM objects WHERE conversation = ?", (self._conversation,))
            objects = pickle.loads(row["state"])
            result = getattr(objects[self._owner], self.name)(**arguments)
            state = pickle.dumps(objects)
            db.execute("UPDATE objects SET state = ? WHERE conversation = ?", (state, self._conversation))
            effect = (self._conversation, context.call_id, self.name)
            db.execute("INSERT INTO effects VALUES (?, ?, ?)", effect)
            return harness_text(result)

        await self._stops.pass_by(self._conversation, context.call_id, "before")
        text: str = await self._database.change(work, key=context.idempotency_key)
        await self._stops.pass_by(self._conversation, context.call_id, "after")
        return text


def harness_text(result: Any) -> str:
    """Return a result in the format of BFCL's harness."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result) if type(result) is dict else str(result)
    except (TypeError, ValueError):
        return str(result)


class Stops:
    """The points at which conversations wait for the kill. A file stores the points of earlier kills."""

    def __init__(self, path: Path) -> None:
        self._passed = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set[str]()
        self._file = path.open("a", encoding="utf-8")
        self._running: set[str] = set()
        self._waiting: set[str] = set()
        self.all_wait = trio.Event()
        """Set when each running conversation waits for the kill."""

    def begin(self, conversations: Iterable[str]) -> None:
        """Store the conversations that run in this process."""
        self._running = set(conversations)
        self._look()

    def end(self, conversation: str) -> None:
        """Record that a conversation has ended."""
        self._running.discard(conversation)
        self._look()

    async def pass_by(self, conversation: str, call: str, point: str) -> None:
        """Wait for the kill, unless an earlier process was killed at this point of this call."""
        if not call or f"{conversation} {call} {point}" in self._passed:
            return
        self._file.write(f"{conversation} {call} {point}\n")
        self._file.flush()
        self._waiting.add(conversation)
        self._look()
        await trio.sleep_forever()

    @property
    def is_killable(self) -> bool:
        """True if a conversation waits for the kill."""
        return bool(self._waiting)

    def _look(self) -> None:
        if self._waiting >= self._running:
            self.all_wait.set()


def stopping_model(
    conversation: Conversation, methods: Mapping[str, Callable[..., Any]], stops: Stops
) -> Callable[[ModelRequest], Any]:
    """Return the same model with a wait for the kill at its first request with the result of a call."""
    answer = true_model(conversation, methods)

    async def stopping_answer(chat: ModelRequest) -> Any:
        last = chat.messages[-1].parts[-1]
        if isinstance(last, ToolResult):
            await stops.pass_by(conversation.id, last.call_id, "between")
        return answer(chat)

    return stopping_answer


async def live_once(material: Material, conversations: Sequence[Conversation], folder: Path) -> None:
    """Run all conversations of a batch in this process, until each of them has ended or waits for the kill."""
    stops = Stops(folder / "stops.txt")
    agents = f"sqlite:///{folder}/agents.db"
    database = Database(f"sqlite:///{folder}/objects.db", migrations=[TABLES])
    done = folder / "done.jsonl"
    ended = {json.loads(line)["id"] for line in done.read_text().splitlines()} if done.exists() else set()
    left = [each for each in conversations if each.id not in ended]

    async def live(conversation: Conversation, agent: BareAgent) -> None:
        session = await converse(conversation, agent)
        results = [[result.status, result.content] for result in tool_results(session)]
        with done.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": conversation.id, "results": results}) + "\n")
        stops.end(conversation.id)

    async with database, open_runtime(journal=agents) as runtime:
        fresh = [(each.id, pickle.dumps(material.objects(each))) for each in left]
        await database.change(
            lambda db: [db.execute("INSERT OR IGNORE INTO objects VALUES (?, ?)", row) for row in fresh]
        )
        started = []
        stops.begin(each.id for each in left)
        for each in left:
            methods = functions(material.objects(each))
            tools = [DatabaseTool(method, each.id, database, stops) for method in methods.values()]
            agent = make_agent(each, tools, ScriptedLLM(stopping_model(each, methods, stops), keep=0))
            started.append((each, await runtime.start(agent)))
        async with trio.open_nursery() as nursery:
            for each, agent in started:
                nursery.start_soon(live, each, agent)
            await stops.all_wait.wait()
            if stops.is_killable:
                print("killable", flush=True)
                await trio.sleep_forever()
    print("done", flush=True)


@attrs.define
class Killed:
    """Results of the second part."""

    kills: int = 0
    """Processes that were killed."""
    stops: int = 0
    """Kills counted for each conversation: one killed process counts up to `BATCH` times."""
    wrong: list[str] = attrs.field(factory=list)
    """Conversations whose final state differs."""
    lost: list[str] = attrs.field(factory=list)
    """Calls whose result is missing, is not a success, or differs from BFCL's."""
    inexact: list[str] = attrs.field(factory=list)
    """Conversations some of whose calls took effect twice, not at all, or in another order."""
    calls: int = 0
    journal_bytes: int = 0


async def kill(material: Material, conversations: Sequence[Conversation], progress: Progress) -> Killed:
    """Run the conversations in batches, with a series of killed processes for each batch, and compare the results."""
    found, places = Killed(), trio.CapacityLimiter(PROCESSES)
    ended = 0

    async def run_batch(batch: Sequence[Conversation]) -> None:
        nonlocal ended
        async with places:
            with tempfile.TemporaryDirectory() as scratch:
                kills = await kill_batch(material.folder, batch, Path(scratch))
                found.kills += kills
                judge_batch(material, batch, Path(scratch), found)
            ended += len(batch)
            progress(f"killed: {ended} of {len(conversations)} conversations, {found.kills} processes killed")

    async with trio.open_nursery() as nursery:
        for start in range(0, len(conversations), BATCH):
            nursery.start_soon(run_batch, conversations[start : start + BATCH])
    return found


async def kill_batch(folder: Path, batch: Sequence[Conversation], scratch: Path) -> int:
    """Start processes for a batch until no work is left. Return the number of kills."""
    (scratch / "batch.json").write_text(json.dumps([each.id for each in batch]), encoding="utf-8")
    command = [sys.executable, "-m", "tests.material.bfcl", str(folder), str(scratch)]
    errors, kills = scratch / "errors.txt", 0
    while True:
        with trio.fail_after(LIFE_TIMEOUT_S), errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT
            )
            assert process.stdout is not None
            word = b""
            while not word.endswith(b"\n") and (more := await process.stdout.receive_some()):
                word += more
            if word == b"killable\n":
                process.kill()
                kills += 1
            if await process.wait() == 0:
                return kills
        if word != b"killable\n":
            raise RuntimeError(
                f"the process of a batch ended with {process.returncode}: {errors.read_text()[-2000:]}"
            )


def judge_batch(material: Material, batch: Sequence[Conversation], scratch: Path, found: Killed) -> None:
    """Compare states, effects and results of a batch with BFCL's harness."""
    found.stops += len((scratch / "stops.txt").read_text(encoding="utf-8").splitlines())
    found.journal_bytes += (scratch / "agents.db").stat().st_size
    results = {line["id"]: line["results"] for line in _lines(scratch / "done.jsonl")}
    with closing(sqlite3.connect(scratch / "objects.db")) as db:
        states = {name: pickle.loads(state) for name, state in db.execute("SELECT * FROM objects")}
        effects = list(db.execute("SELECT conversation, call, name FROM effects ORDER BY rowid"))
    for conversation in batch:
        texts, truth = material.harness_result(conversation)
        found.calls += len(texts)
        if not material.is_equal(states[conversation.id], truth):
            found.wrong.append(conversation.id)
        made = results.get(conversation.id, [])
        if has_wrong_truth(conversation.id):
            continue
        lost = [at for at, text in enumerate(texts) if at >= len(made) or made[at] != ["success", text]]
        found.lost += [f"{conversation.id} call {at}" for at in lost]
        expected = [
            (f"t{turn}c{number}", text.partition("(")[0])
            for turn, calls in enumerate(conversation.truth)
            for number, text in enumerate(calls)
        ]
        if [each[1:] for each in effects if each[0] == conversation.id] != expected:
            found.inexact.append(conversation.id)


def has_wrong_truth(conversation: str) -> bool:
    """Return True for a conversation with a true call that passes a string for an argument declared as int."""
    return conversation.endswith(WRONG_TRUTH)


# ---- Tables


async def run(folder: Path, *, progress: Progress, quick: bool) -> list[Table]:
    """Run both parts and return one table."""
    material = Material(folder)
    conversations = material.conversations()[:: QUICK if quick else 1]
    plain = await measure(material, conversations, progress)
    killed = await kill(material, conversations, progress)
    names = {name for each in conversations for name in each.classes}
    return [make_table(len(conversations), plain, killed, tools=count_tools(material, names))]


def count_tools(material: Material, class_names: Iterable[str]) -> int:
    """Return the number of functions of these classes that become tools without a change."""
    return sum(
        len([tool(each) for each in functions({name: material.make(name)}).values()]) for name in class_names
    )


def make_table(count: int, plain: Measured, killed: Killed, *, tools: int) -> Table:
    """Return the table of both parts, with the missed bars."""
    cpu_ms, functions_ms = plain.cpu_s / count * 1000, plain.harness_cpu_s / count * 1000
    size_kb, killed_kb = (found.journal_bytes / count / 1000 for found in (plain, killed))
    rows = (
        ("final states equal", _share(count, plain.wrong), _share(count, killed.wrong)),
        ("functions as tools, as they are", str(tools), ""),
        ("calls", f"{plain.calls:,}", f"{killed.calls:,}"),
        ("results equal to those of BFCL's harness", f"{plain.equal_results:,}", ""),
        ("calls refused or failed", f"{plain.calls - plain.statuses['success']:,}", ""),
        ("results lost or different", "", str(len(killed.lost))),
        ("conversations with an effect missing, doubled or in another order", "", str(len(killed.inexact))),
        ("processes killed", "0", str(killed.kills)),
        ("kills, counted for each conversation", "0", f"{killed.stops:,}"),
        ("CPU per conversation, ms", f"{cpu_ms:.1f}", ""),
        ("the same on the undisturbed machine, ms", f"{cpu_ms * plain.speed:.1f}", ""),
        ("of which BFCL's functions, ms", f"{functions_ms * plain.speed:.1f}", ""),
        ("journal per conversation, KB", f"{size_kb:.1f}", f"{killed_kb:.1f}"),
    )
    wrong = sorted(filter(has_wrong_truth, plain.wrong))
    failures = [
        *(f"the final state of {name} differs" for name in plain.wrong if not has_wrong_truth(name)),
        *(
            f"the final state of {name} differs with kills"
            for name in killed.wrong
            if not has_wrong_truth(name)
        ),
        *(f"lost with kills: {call}" for call in killed.lost),
        *(f"effects of {name} with kills are not exact" for name in killed.inexact),
    ]
    if cpu_ms * plain.speed > CPU_BAR_MS:
        failures.append(f"{cpu_ms * plain.speed:.1f} ms CPU per conversation, at most {CPU_BAR_MS}")
    if size_kb > JOURNAL_BAR_KB:
        failures.append(f"{size_kb:.1f} KB of journal per conversation, at most {JOURNAL_BAR_KB}")
    return Table(
        title=f"{SOURCE.title}: {count} conversations, an agent each, journal in SQLite",
        heads=("", "without kills", "killed 3 times per call"),
        rows=rows,
        note=f"""Requirements: all final states but those with wrong types in BFCL's own truth, no result lost, {CPU_BAR_MS} ms, {JOURNAL_BAR_KB} KB.
Wrong types in BFCL's truth, `close_ticket(ticket_id='ticket_001')` for an int: {", ".join(wrong) or "not in this sample"}.
Each call is killed before its effect, between its effect and its result, and after its result.
CPU includes making the tools and starting the agent.""",
        failures=tuple(failures),
    )


def _share(count: int, wrong: Sequence[str]) -> str:
    return f"{count - len(wrong)} of {count}"


def main() -> None:
    """Run a batch in this process. The arguments are BFCL's folder and the folder of the batch."""
    folder, scratch = map(Path, sys.argv[1:])
    material, ids = Material(folder), json.loads((scratch / "batch.json").read_text(encoding="utf-8"))
    by_id = {each.id: each for each in material.conversations()}
    trio.run(live_once, material, [by_id[each] for each in ids], scratch)


if __name__ == "__main__":
    main()
