"""Recorded agent runs: replayed with small context windows, loaded as histories, and compared with token counts.

A run of mini-swe-agent is one task of a user and dozens of commands. Here it becomes one turn: a scripted model repeats
the recorded answers, and a tool returns the recorded outputs. Each answer has the token count of its provider, so the
tokens of each message are known, and the tokens of each request that a memory builds from them.
"""

import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent import (
    BareAgent,
    Limits,
    Memory,
    ModelRequest,
    ModelResponse,
    ScriptedLLM,
    SlidingWindow,
    SummarizingMemory,
    ToolCall,
    tool,
)
from actgent.errors import ActgentError
from actgent.llm import context_window
from actgent.messages import ChatMessage, Text, ToolResult, Usage

from .tables import Progress, Source, Table

RUNS = "mini-swe-agent/swebench_results/*/trajs/*/*.traj.json"
SOURCE = Source(
    title="recorded runs: mini-swe-agent with Gemini 3 Pro, tau-bench with GPT-4o, SWE-agent demonstrations",
    files=(
        RUNS,
        "swe-agent/trajectories/demonstrations/**/*.traj",
        "tau-bench/historical_trajectories/*.json",
    ),
    origin=(
        "the public repositories gruckion/mini-swe-agent (the 500 runs of SWE-bench Verified that mini-swe-agent "
        "published in November 2025), SWE-agent/SWE-agent and sierra-research/tau-bench on GitHub, unpacked to "
        "MATERIAL/recorded/mini-swe-agent, .../swe-agent and .../tau-bench"
    ),
    licence="MIT, all three",
)

WINDOWS = (32_000, 16_000)
"""Context windows in tokens."""
LAST = 5
"""Number of last results that each request must contain."""
LEAST_SHARE, MOST_SHARE = 0.45, 0.55
"""Minimum and maximum share of the available tokens that a request may use after a cut."""
QUICK = 25
"""Step between the recorded runs of a quick run."""
OTHER_MEMORIES = 9
"""Step between the runs that are also replayed with memories other than the default."""
SIDE_BY_SIDE = 20
MODEL_CALLS = 1_000
_COMMAND = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)


# ---- Runs of mini-swe-agent


@attrs.frozen
class Step:
    """One answer of the model, and the output of its command."""

    answer: str
    """Text of the answer, including the command."""
    output: str
    """Output of the command."""
    counted: int
    """Tokens of the request of this answer, as the provider counted them."""
    answer_tokens: int
    """Tokens of the answer, as the provider counted them."""


@attrs.frozen
class Run:
    """A recorded run: a task and its steps."""

    id: str
    system: str
    task: str
    steps: tuple[Step, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per character of each step (answer and output), from the increase of the provider's counts."""
        sizes = [len(step.answer) + len(step.output) for step in self.steps]
        grown = [later.counted - step.counted for step, later in itertools.pairwise(self.steps)]
        return tuple(max(tokens, 1) / size for tokens, size in zip(grown, sizes, strict=False))


def read_run(path: Path) -> Run:
    """Read a trajectory of mini-swe-agent."""
    messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
    answers, outputs = messages[2::2], messages[3::2]
    steps = tuple(
        Step(answer["content"] or "", output["content"], *_counts(answer))
        for answer, output in zip(answers, outputs, strict=False)
    )
    return Run(path.parent.name, messages[0]["content"], messages[1]["content"], steps)


def _counts(answer: Mapping[str, Any]) -> tuple[int, int]:
    usage = answer["extra"]["response"]["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def read_runs(folder: Path) -> list[Run]:
    """Read all runs below the folder, by name."""
    return [read_run(path) for path in sorted(folder.glob(RUNS))]


# ---- Replay in one turn


@attrs.define
class Replayed:
    """Statistics of the requests of replayed runs."""

    runs: int = 0
    failed: Counter[str] = attrs.field(factory=Counter)
    """Runs that did not end, by the class of their error."""
    requests: int = 0
    without_task: int = 0
    runs_without_task: int = 0
    without_last: int = 0
    """Requests without one of the last results."""
    shortened_last: int = 0
    """Requests in which one of the last results is shortened."""
    unpaired: int = 0
    """Requests with a call without its result, or a result without its call."""
    over: int = 0
    """Requests with more tokens than the window."""
    cuts: list[float] = attrs.field(factory=list)
    """Share of the available tokens that each request after a cut uses."""
    cramped: int = 0
    """Requests after a cut that contain only the task and the last rounds, and use more than `MOST_SHARE` of the available tokens."""
    long_task: int = 0
    """Requests without one of the last results, if the task alone uses more than `MOST_SHARE` of the available tokens."""


class Replay:
    """A model that repeats the answers of a run, counts tokens as the provider did, and checks each request."""

    def __init__(self, run: Run, found: Replayed, window: int | None) -> None:
        self._run, self._found, self._window = run, found, window
        self._rates = run.rates
        self._step = self._size = 0
        self._lost = False

    def answer(self, chat: ModelRequest) -> ModelResponse:
        """Return the next recorded answer; the last one ends the turn."""
        tokens = self._tokens(chat)
        self._look(chat, tokens)
        step = self._run.steps[self._step]
        usage = Usage(input_tokens=tokens, output_tokens=step.answer_tokens)
        self._step += 1
        if self._step == len(self._run.steps):
            return ModelResponse(parts=(Text(step.answer),), usage=usage)
        call = ToolCall("bash", {"command": command_of(step.answer)}, id=f"c{self._step - 1}")
        text = step.answer.replace(f"```bash\n{call.arguments['command']}\n```", "").strip()
        return ModelResponse(parts=(*((Text(text),) if text else ()), call), usage=usage)

    def _tokens(self, chat: ModelRequest) -> int:
        """Count the tokens of a request as the provider did: each message at the rate of its step, other text at 4 characters per token."""
        run = self._run
        begin = run.steps[0].counted / (len(run.system) + len(run.task))
        total = 0.0
        for message in chat.messages:
            rate = begin if message.role in ("system", "user") else self._rate_of(message)
            for part in message.parts:
                if isinstance(part, ToolCall):
                    # A memory replaces long arguments with a note of their length.
                    total += len(part.arguments.get("command") or str(part.arguments)) * rate
                else:
                    total += len(getattr(part, "text", "")) * rate
        return round(total)

    def _rate_of(self, message: ChatMessage) -> float:
        """Return the tokens per character of a message of the model or of the tool. The rate of other messages, such as a summary, is 1/4."""
        for part in message.parts:
            if isinstance(part, ToolCall | ToolResult):
                number = int((part.id if isinstance(part, ToolCall) else part.call_id)[1:])
                return self._rates[number] if number < len(self._rates) else 0.25
        return 0.25

    def _look(self, chat: ModelRequest, tokens: int) -> None:
        found = self._found
        found.requests += 1
        if not has_text(chat, self._run.task):
            found.without_task += 1
            found.runs_without_task += not self._lost
            self._lost = True
        shown = {part.call_id: part for part in parts_of(chat) if isinstance(part, ToolResult)}
        last = range(max(0, self._step - LAST), self._step)
        is_incomplete = any(f"c{number}" not in shown for number in last)
        found.without_last += is_incomplete
        found.shortened_last += any(
            f"c{number}" in shown and shown[f"c{number}"].content != self._run.steps[number].output
            for number in last
        )
        found.unpaired += {part.id for part in parts_of(chat) if isinstance(part, ToolCall)} != shown.keys()
        if self._window is not None:
            room = room_of(self._window)
            maximum, first = MOST_SHARE * room, self._run.steps[0].counted
            found.over += tokens > self._window
            found.long_task += is_incomplete and first > maximum
            if tokens < self._size:
                is_cramped = tokens > maximum and len(shown) <= LAST
                found.cramped += is_cramped
                found.cuts += () if is_cramped else (tokens / room,)
        self._size = tokens


def command_of(answer: str) -> str:
    """Return the first command of an answer, or an empty text."""
    found = _COMMAND.search(answer)
    return found.group(1) if found else ""


def parts_of(chat: ModelRequest) -> Iterator[Any]:
    """Yield the parts of all messages of a request."""
    for message in chat.messages:
        yield from message.parts


def has_text(chat: ModelRequest, text: str) -> bool:
    """Return True if a part of the request contains the whole text."""
    return any(text in part.text for part in parts_of(chat) if isinstance(part, Text))


def room_of(window: int) -> int:
    """Return the tokens of a window without the tokens reserved for the answer."""
    model = ScriptedLLM(["-"], context_window=window)
    return window - context_window.reserved_answer_tokens(model, ModelRequest(messages=()), window)


async def replay(run: Run, found: Replayed, window: int | None, memory: Memory | None) -> None:
    """Replay a run as one turn of a new agent, and add its requests to the statistics."""
    outputs = iter([step.output for step in run.steps])

    @tool(effect="pure", thread=False)
    def bash(command: str) -> str:
        """Run a command in a shell."""
        return next(outputs)

    model = ScriptedLLM(Replay(run, found, window).answer, keep=0, context_window=window)
    options = {} if memory is None else {"memory": memory}
    agent = BareAgent(
        "coder",
        llm=model,
        system_prompt=run.system,
        tools=[bash],
        # Recorded runs repeat a command up to 5 times in a row.
        limits=Limits(model_calls=MODEL_CALLS, max_repeated_calls=MODEL_CALLS),
        **options,
    )
    found.runs += 1
    async with agent:
        try:
            await agent.run(run.task, session=await agent.create_session("ada"))
        except ActgentError as error:
            found.failed[type(error).__name__] += 1


async def replay_all(
    runs: Sequence[Run],
    window: int | None,
    memory: Callable[[], Memory] | None,
    progress: Callable[[int], None],
) -> Replayed:
    """Replay runs concurrently."""
    found, places = Replayed(), trio.CapacityLimiter(SIDE_BY_SIDE)

    async def one(run: Run) -> None:
        async with places:
            await replay(run, found, window, None if memory is None else memory())
            progress(found.runs)

    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(one, run)
    return found


def _summarizing() -> Memory:
    return SummarizingMemory(
        keep=10, trigger=8_000, llm=ScriptedLLM(["A summary of what was done."], repeat=True)
    )


MEMORIES: Mapping[str, Callable[[], Memory]] = {
    "SlidingWindow(tokens=8_000)": lambda: SlidingWindow(tokens=8_000),
    "SummarizingMemory(keep=10, trigger=8_000)": _summarizing,
}


# ---- Token counts


@attrs.define
class Counts:
    """The token bounds of requests, computed before the request, compared with the provider's count."""

    requests: int = 0
    short: int = 0
    """Requests with more tokens than `upper_bound`."""
    high: list[float] = attrs.field(factory=list)
    """`upper_bound` divided by the provider's count."""
    expected: list[float] = attrs.field(factory=list)
    """Expected tokens divided by the provider's count."""


def compare_counts(runs: Sequence[Run], progress: Callable[[int], None]) -> Counts:
    """Compare the bounds with the provider's count for each uncut request of all runs."""
    found = Counts()
    for number, run in enumerate(runs, 1):
        model, before = ScriptedLLM(["-"], context_window=1_000_000), None
        messages = [ChatMessage("system", (Text(run.system),)), ChatMessage("user", (Text(run.task),))]
        for step in run.steps:
            chat = ModelRequest(messages=tuple(messages))
            bound = context_window.upper_bound(model, chat, before)
            found.requests += 1
            found.short += bound < step.counted
            found.high.append(bound / step.counted)
            found.expected.append(context_window.expected_tokens(model, chat, before) / step.counted)
            usage = Usage(input_tokens=step.counted, output_tokens=step.answer_tokens)
            answer = ModelResponse(parts=(Text(step.answer),), usage=usage)
            before = context_window.count_answered(model, chat, answer, before)
            messages += [
                ChatMessage("assistant", (Text(step.answer),)),
                ChatMessage("user", (Text(step.output),)),
            ]
        progress(number)
    return found


# ---- Histories


@attrs.define
class Histories:
    """Results of recordings that were loaded by `history=`."""

    kind: str
    recordings: int = 0
    with_calls: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    """Rejected recordings, by the class of the error."""
    unpaired: int = 0
    """Recordings whose next request has a call without its result, or a result without its call."""


def openai_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[ChatMessage, ...]:
    """Return messages in OpenAI's format as messages of a history, without the system prompt and empty outputs of commands."""
    names: dict[str, str] = {}
    made = []
    for message in messages:
        text, parts = _content(message.get("content")), list[Any]()
        for call in message.get("tool_calls") or ():
            function = call["function"]
            names[call["id"]] = function["name"]
            arguments = function["arguments"]
            options = json.loads(arguments) if isinstance(arguments, str) else arguments
            parts.append(ToolCall(function["name"], options, id=call["id"]))
        if message["role"] == "tool":
            call_id = message.get("tool_call_id") or (message.get("tool_call_ids") or [""])[0]
            name = message.get("name") or names.get(call_id, "tool")
            made.append(ChatMessage("tool", (ToolResult(call_id=call_id, tool_name=name, content=text),)))
        elif message["role"] == "assistant" or (message["role"] == "user" and text.strip()):
            made.append(ChatMessage(message["role"], (*((Text(text),) if text or not parts else ()), *parts)))
    return tuple(made)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


def recordings(folder: Path) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield all recordings by kind, as messages in OpenAI's format."""
    for path in sorted(folder.glob(RUNS)):
        yield "mini-swe-agent", json.loads(path.read_text(encoding="utf-8"))["messages"]
    for path in sorted(folder.glob("swe-agent/trajectories/demonstrations/**/*.traj")):
        yield "SWE-agent", json.loads(path.read_text(encoding="utf-8"))["history"]
    for path in sorted(folder.glob("tau-bench/historical_trajectories/*.json")):
        for run in json.loads(path.read_text(encoding="utf-8")):
            yield "tau-bench", run["traj"]


async def accept_all(
    found: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], progress: Callable[[int], None]
) -> list[Histories]:
    """Load each recording as the history of a new session, and send one more request to the model."""
    kinds = {kind: Histories(kind) for kind, _ in found}
    model = ScriptedLLM(["Done."], repeat=True, keep=1)
    async with BareAgent("reader", llm=model) as agent:
        for number, (kind, messages) in enumerate(found, 1):
            counted = kinds[kind]
            history = openai_messages(messages)
            counted.recordings += 1
            counted.with_calls += any(isinstance(part, ToolCall) for each in history for part in each.parts)
            try:
                session = await agent.create_session("ada", history=history)
            except ActgentError as error:
                counted.refused[f"{type(error).__name__}: {error}"[:80]] += 1
                continue
            await agent.run("And now?", session=session)
            counted.unpaired += not has_pairs(model.chats[-1])
            await session.aclose()
            progress(number)
    return list(kinds.values())


def has_pairs(chat: ModelRequest) -> bool:
    """Return True if each call of a request has a later result, and each result an earlier call."""
    waiting: Counter[str] = Counter()
    for part in parts_of(chat):
        if isinstance(part, ToolCall):
            waiting[part.id] += 1
        elif isinstance(part, ToolResult):
            waiting[part.call_id] -= 1
            if waiting[part.call_id] < 0:
                return False
    return not any(waiting.values())


# ---- Tables


async def run(folder: Path, *, progress: Progress, quick: bool) -> list[Table]:
    """Replay all runs with both windows, compare token counts, and load all recordings as histories."""
    runs = read_runs(folder)[:: QUICK if quick else 1]
    few = runs if quick else runs[::OTHER_MEMORIES]
    rows: list[tuple[str, Replayed]] = []
    for window in WINDOWS:
        label = f"{window:,}, default"
        rows.append((label, await replay_all(runs, window, None, _counting(progress, label, len(runs)))))
    for name, memory in MEMORIES.items():
        label = f"{WINDOWS[0]:,}, {name}"
        rows.append((label, await replay_all(few, WINDOWS[0], memory, _counting(progress, label, len(few)))))
    counts = compare_counts(runs, _counting(progress, "token counts", len(runs)))
    found = list(recordings(folder))[:: QUICK if quick else 1]
    histories = await accept_all(found, _counting(progress, "histories", len(found)))
    return [replay_table(rows), counts_table(counts), histories_table(histories)]


def _counting(progress: Progress, label: str, total: int) -> Callable[[int], None]:
    return lambda number: progress(f"{label}: {number} of {total}")


def replay_table(rows: Sequence[tuple[str, Replayed]]) -> Table:
    """Return the table of replayed runs, with the missed bars."""
    failures = []
    for label, found in rows:
        outside = count_outside(found.cuts)
        misses = {
            "requests without the task": found.without_task,
            f"requests without the last {LAST} results": found.without_last - found.long_task,
            "requests with a broken pair": found.unpaired,
            "requests over the window": found.over,
        }
        if label.endswith("default"):
            misses[f"requests after a cut outside {LEAST_SHARE:.0%} to {MOST_SHARE:.0%} of the room"] = (
                outside
            )
        failures += [f"{label}: {count} {what}" for what, count in misses.items() if count]
        failures += [f"{label}: {count} runs ended with {name}" for name, count in found.failed.items()]
    return Table(
        title="Runs of mini-swe-agent as one turn each, in a small context window",
        heads=(
            "window, memory",
            "runs",
            "failed",
            "requests",
            "requests without the task",
            "runs with such a request",
            f"requests without one of the last {LAST} results",
            f"requests with one of the last {LAST} results shortened",
            "requests with an unpaired call or result",
            "requests above the window",
            "cuts",
            "cuts to less than 45 % or more than 55 %",
            "share of the room after a cut: minimum, median, maximum",
            f"cuts to the task and the last {LAST} rounds, above 55 %",
        ),
        rows=tuple(_replay_row(label, found) for label, found in rows),
        note=f"""\
A *cut* removes old messages from the request; *room* is the context window without the space that is reserved for the answer.
The first requirement is that each request contains the task and the last {LAST} results. \
In some runs, the text of the task takes more than {MOST_SHARE:.0%} of the room. Therefore the first requirement does not apply to the \
{sum(found.long_task for _, found in rows)} requests of such runs.
The second requirement is that a request takes {LEAST_SHARE:.0%} to {MOST_SHARE:.0%} of the room after a cut by the default memory. \
A request does not have to meet the second requirement if only the task and the last {LAST} rounds of calls and results are left, and take more than \
{MOST_SHARE:.0%} of the room.

The provider counts the tokens of each request. To count the tokens of a message, the benchmark subtracts the provider's count \
without the message from the count with the message.""",
        failures=tuple(failures),
    )


def _replay_row(label: str, found: Replayed) -> tuple[str, ...]:
    numbers = (
        found.runs,
        found.failed.total(),
        found.requests,
        found.without_task,
        found.runs_without_task,
        found.without_last,
        found.shortened_last,
        found.unpaired,
        found.over,
        len(found.cuts),
        count_outside(found.cuts),
    )
    shares = (min(found.cuts), statistics.median(found.cuts), max(found.cuts)) if found.cuts else ()
    return (
        label,
        *(f"{number:,}" for number in numbers),
        ", ".join(f"{share:.0%}" for share in shares) or "no cut",
        str(found.cramped),
    )


def count_outside(shares: Sequence[float]) -> int:
    """Return the number of shares below `LEAST_SHARE` or above `MOST_SHARE`."""
    return sum(not LEAST_SHARE <= share <= MOST_SHARE for share in shares)


def counts_table(counts: Counts) -> Table:
    """Return the table of token counts, with the missed bars."""
    failures = (
        [f"upper_bound was below the provider's count in {counts.short} requests"] if counts.short else []
    )
    too_high = sum(ratio > MOST_HIGH for ratio in counts.high)
    return Table(
        title="Estimated tokens of a request, divided by the provider's count",
        heads=("estimate", "requests", "below the count", "min", "p1", "median", "p99", "max"),
        rows=(
            ("`upper_bound`", f"{counts.requests:,}", f"{counts.short:,}", *_spread(counts.high)),
            ("`expected_tokens`", f"{counts.requests:,}", "", *_spread(counts.expected)),
        ),
        note=f"Requirement: `upper_bound` is never below the count. In {too_high:,} requests, `upper_bound` is more than 10 % above the count.",
        failures=tuple(failures),
    )


MOST_HIGH = 1.1


def _spread(values: Sequence[float]) -> tuple[str, ...]:
    ordered = sorted(values)
    places = (0, len(ordered) // 100, len(ordered) // 2, len(ordered) * 99 // 100, len(ordered) - 1)
    return tuple(f"{ordered[place]:.3f}" for place in places)


def histories_table(found: Sequence[Histories]) -> Table:
    """Return the table of histories, with the missed bars."""
    failures = [
        f"{each.kind}: {count} recordings refused: {reason}"
        for each in found
        for reason, count in each.refused.items()
    ]
    failures += [
        f"{each.kind}: broken pairs in {each.unpaired} recordings" for each in found if each.unpaired
    ]
    return Table(
        title="Recordings as `history=` of a session",
        heads=("recordings of", "recordings", "with calls", "accepted", "with an unpaired call or result"),
        rows=tuple(
            (
                each.kind,
                str(each.recordings),
                str(each.with_calls),
                str(each.recordings - each.refused.total()),
                str(each.unpaired),
            )
            for each in found
        ),
        note="Requirement: all recordings are accepted.",
        failures=tuple(failures),
    )
