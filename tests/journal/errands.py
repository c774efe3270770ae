"""The same tasks for each autonomous loop; their effects are files outside of the process.

The model uses only the chat: it reads the state before it books, books free orders, and reads again if the outcome of a booking
is unknown. So a run ends equally wherever its process was killed, unless something is lost, repeated or reported wrongly.

`python errands.py URL FOLDER --sessions 5 --kills 10 --seed 1` repeats this with processes that SIGKILL ends at random moments,
until the number of kills is reached. It prints a report as JSON.
"""

import json
import random
import re
import sys

import attrs
import trio
from crashes import Lines, command, run, tell

from actgent import (
    Agent,
    GoalAgent,
    Limits,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import AgentMessageRecord, MessageEndRecord
from actgent.protocols.plan import Planning
from actgent.testing import check_transcript

MESSAGES = ("book a and b", "book c")
CALLS = 60
"""Model calls a turn, and the same ones in a row: each kill of a booking makes its errand longer by a round."""


# --- what the model sees ----------------------------------------------------------------------


@attrs.frozen
class Seen:
    """The state of the tasks according to a chat."""

    orders: tuple[str, ...]
    done: tuple[tuple[str, str, str], ...]
    """Tool, order and result of each call, oldest first."""
    said: tuple[str, ...]
    """The model's own answers since the user's last message."""
    tail: str

    def standing(self, order):
        """Return `booked`, `free`, `unknown`, or None if the chat has no result."""
        last = None
        for name, of, result in self.done:
            if of != order or name == "store":
                continue
            found = re.search(r"is (booked|free)", result)
            last = found[1] if found else "unknown"
        return last

    def calls(self, orders):
        """Return the next concurrent calls for some orders; none if all are booked."""
        for order in orders:
            match self.standing(order):
                case None:
                    return [("look", each) for each in orders]
                case "unknown":
                    return [("look", order)]
                case "free":
                    return [("book", order), ("store", order)] if order == "b" else [("book", order)]
        return []

    @property
    def answer(self):
        return "booked: " + ", ".join(order for order in self.orders if self.standing(order) == "booked")


_CALL = re.compile(r'"(look|book|store)", "(?:parameters|arguments|args)": \{"order": "(\w)"\}')
_RESULT = re.compile(r"\[(look|book|store)\] \(ID: [^)]*\)\n(.*)")


def see(chat):
    """Read a chat, with native calls or calls in text."""
    orders, requests, results, texts = [], [], [], []
    for message in chat.messages[:-1] if chat.messages[-1].role == "user" else chat.messages:
        text = "".join(getattr(part, "text", "") for part in message.parts)
        if message.role == "assistant":
            texts.append(text)
            native = [part for part in message.parts if isinstance(part, ToolCall)]
            requests += [(call.name, call.arguments["order"]) for call in native] or _CALL.findall(text)
        elif message.role == "tool":
            results += [(part.tool_name, part.text) for part in message.parts]
        elif text.startswith("Tool results:"):
            results += _RESULT.findall(text)
        elif text.startswith("book "):
            orders += [word for word in text.split()[1:] if len(word) == 1]
            texts = []
    done = [(name, order, result) for (name, order), (_, result) in zip(requests, results, strict=True)]
    return Seen(tuple(orders), tuple(done), tuple(texts), chat.messages[-1].parts[0].text)


# --- how each loop says it --------------------------------------------------------------------


def _native(calls):
    return [ToolCall(name, {"order": order}) for name, order in calls]


def steps_answer(seen, native):
    if not seen.said:
        return json.dumps({"plan": f"book {', '.join(seen.orders)}"})
    if calls := seen.calls(seen.orders):
        if native:
            return _native(calls)
        expected = [
            {"id": "call", "tool_name": name, "parameters": {"order": order}} for name, order in calls
        ]
        return json.dumps({"tool_thought": "the next step", "tool_calls": expected})
    return json.dumps({"final_answer": seen.answer, "thought": "all is booked"})


def plan_answer(seen, native):
    if item := re.search(r"Do only this item of the plan: \S+: book (\w)", seen.tail):
        calls = seen.calls([item[1]])
        if calls and native:
            return _native(calls)
        expected = [{"toolName": name, "arguments": {"order": order}} for name, order in calls]
        return json.dumps(
            {"thoughts": "go on", "toolCalls": expected} if calls else {"content": f"{item[1]} is booked"}
        )
    if "Now answer the user" in seen.tail:
        return seen.answer
    todo = [{"id": f"of_{order}", "description": f"book {order}"} for order in seen.orders]
    return json.dumps({"intent": "errands", "plan": "one after the other", "todoList": todo})


def goal_answer(seen, native):
    def decide(action, **params):
        return json.dumps({"action": action, "params": params, "reasoning": "as planned"})

    if not seen.said:
        return decide("plan", steps=[f"book {order}" for order in seen.orders])
    if calls := seen.calls(seen.orders):
        if native:
            return _native(calls)
        return decide("execute", calls=[{"tool": name, "args": {"order": order}} for name, order in calls])
    if "summarize" not in seen.said[-1]:
        return decide("summarize", summary=seen.answer)
    return decide("evaluate", achieved=True, feedback="all is booked", answer=seen.answer)


# --- the work ---------------------------------------------------------------------------------


LOOPS = {
    "steps": (StepsAgent, steps_answer, {"max_iterations": CALLS}),
    "plan": (PlanAgent, plan_answer, {"protocol": Planning(rounds=CALLS, model_calls=CALLS)}),
    "goal": (GoalAgent, goal_answer, {"max_iterations": CALLS}),
}


@attrs.define
class Errands:
    """Sessions of each loop, their orders, and the files outside of their processes."""

    folder: object
    name: str = "errands"
    loops: tuple = tuple(LOOPS)
    sessions: int = 1
    native: bool = False
    pause: float = 0.0
    """Seconds, at most, that each effect takes."""
    pick: object = None
    """A function of a bound: how long a pause is."""
    is_dead: bool = False
    """True: its process is, so nobody hears it."""
    effects: Lines = attrs.field(init=False)
    heard: Lines = attrs.field(init=False)
    wrong: Lines = attrs.field(init=False)
    asked: Lines = attrs.field(init=False)

    def __attrs_post_init__(self):
        for name in ("effects", "heard", "wrong", "asked"):
            setattr(self, name, Lines(self.folder / f"{self.name}-{name}.jsonl"))

    @property
    def session_ids(self):
        return [f"{loop}-{number}" for loop in self.loops for number in range(self.sessions)]

    async def live(self, runtime):
        """Resume where the last process ended, until all is done. The caller repeats its requests."""
        async with trio.open_nursery() as nursery:
            for loop in self.loops:
                agent = await runtime.start(self.agent(loop))
                for number in range(self.sessions):
                    nursery.start_soon(self._converse, agent, f"{loop}-{number}")

    async def _converse(self, agent, session_id):
        session = await agent.ensure_session("ada", session_id)
        for number, text in enumerate(MESSAGES):
            await session.chat(text, message_id=f"m{number}")
            await session.wait_idle()

    def agent(self, loop) -> Agent:
        kind, answer, options = LOOPS[loop]

        def complete(chat):
            for problem in check_transcript(chat):
                self.wrong.add("transcript", str(problem))
            self.asked.add(loop)
            return answer(see(chat), self.native)

        limits = Limits(max_repeated_calls=CALLS)
        agent = kind(loop, llm=ScriptedLLM(complete, keep=0), tools=self._tools(), limits=limits, **options)
        agent.on_session(self._attach)
        return agent

    def _tools(self):
        @tool(effect="pure")
        async def look(order: str, context: ToolContext) -> str:
            """Return whether an order is booked."""
            await self._wait()
            self.effects.add("look", context.session_id, order, context.idempotency_key)
            is_booked = ["book", context.session_id, order] in [line[:3] for line in self.effects.read()]
            return f"{order} is {'booked' if is_booked else 'free'}"

        @tool(effect="once")
        async def book(order: str, context: ToolContext) -> str:
            """Book an order."""
            await self._wait()
            self.effects.add("book", context.session_id, order, context.idempotency_key)
            await self._wait()
            return f"{order} is booked"

        @tool(effect="idempotent")
        async def store(order: str, context: ToolContext) -> str:
            """Store an order under the key of its effect."""
            await self._wait()
            self.effects.add("store", context.session_id, order, context.idempotency_key)
            stored = context.state.get("stored", [])
            context.state.dispatch(lambda _: ("stored", [*stored, order]), once=context.idempotency_key)
            return f"stored {order}"

        return [look, book, store]

    async def _wait(self):
        await trio.sleep(self.pick(self.pause) if self.pick is not None else 0)

    def _attach(self, session):
        @session.on_conversation
        def hear(reply):
            if not self.is_dead:
                self.heard.add("reply", session.id, reply.id, reply.text, reply.message_type)

        @session.on_exception
        def complain(failure):
            if not self.is_dead:
                self.wrong.add("failure", session.id, str(failure))


# --- the books --------------------------------------------------------------------------------


def answers_in(records):
    """Return the number of model answers in a journal."""
    return sum(isinstance(record, AgentMessageRecord) and bool(record.stop) for record in records)


def results_in(records):
    """Return the results in a journal by the effect keys of their calls."""
    return {
        result.call_id
        for r in records
        if isinstance(r, AgentMessageRecord)
        for result in r.message.tool_results
    }


@attrs.define
class Killed:
    """Tasks in processes that are killed, and the checks of their results."""

    url: str
    work: Errands
    unknown: int = 0
    """Results whose outcome is not known: how often a kill hit a tool that counts."""

    async def live(self):
        async with open_runtime(journal=self.url) as runtime:
            await self.work.live(runtime)

    def figures(self):
        return {"unknown": self.unknown}

    async def problems(self):
        """Return all violations of the expected results as sentences."""
        found = [f"noted in a life: {line}" for line in self.work.wrong.read()]
        async with open_journal(self.url) as journal:
            await journal.acquire()
            for session_id in self.work.session_ids:
                found += self._problems_of(session_id, await journal.load(session_id))
        return found

    def _problems_of(self, session_id, records):
        ended = [(each.message_id, each.failed) for each in records if isinstance(each, MessageEndRecord)]
        if ended != [(f"m{number}", None) for number in range(len(MESSAGES))]:
            yield f"{session_id} ended {ended}"
        replies = [line[2:] for line in self.work.heard.read() if line[1] == session_id]
        received = list({reply_id: text for reply_id, text, _ in replies}.values())
        if received != ["booked: a, b", "booked: a, b, c"]:
            yield f"{session_id} answered {received}"
        results = [
            result
            for each in records
            if isinstance(each, AgentMessageRecord)
            for result in each.message.tool_results
        ]
        self.unknown += sum(result.status == "outcome_unknown" for result in results)
        booked = [line[2] for line in self.work.effects.read() if line[:2] == ["book", session_id]]
        if sorted(booked) != ["a", "b", "c"]:
            yield f"{session_id} booked {booked}"


def run_errands(options):
    def start(number):
        work = Errands(options.folder, name=f"w{number}", sessions=options.sessions)
        work.native, work.pause, work.pick = bool(number % 2), 0.004, _pause
        return Killed(f"{options.url}{number}", work)

    return run(options, start)


def _pause(maximum):
    return random.uniform(0, maximum)


if __name__ == "__main__":
    sys.exit(tell(run_errands(command(__doc__, "sessions", "kills", "seed"))))
