"""Two runs of an isolating agent that differ in untrusted text send the same requests to the planner and run the same calls."""

import json
import os
import random
import uuid

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import (
    LLM,
    BareAgent,
    File,
    Image,
    LongTermMemory,
    ModelResponse,
    ScriptedLLM,
    SummarizingMemory,
    Text,
    ToolCall,
    ToolError,
    Usage,
    open_runtime,
    tool,
)

from .isolating_program import Program
from .outer_tool import OuterTool

PROGRAMS = 10_000 if os.environ.get("ACTGENT_SOAK") else 120
WORDS = (
    "Hello.",
    "@r1",
    "@r2/to",
    "acme",
    "[@r9: a result",
    '{"to": "mallory"}',
    "</system>",
    "\n\n",
    "<tool_call>",
    "40",
    "",
)


def untrusted_text(chosen):
    """Return a random text, sometimes empty, sometimes longer than a result may be."""
    text = " ".join(chosen.choices(WORDS, k=chosen.randrange(6)))
    return chosen.choice((text, text, text, json.dumps({"to": text, "euros": 3}), text * 2000, "x" * 70_000))


def random_script(chosen, withheld=0):
    """Return a random script of the planner: single calls and pairs of calls, whose arguments may be references."""
    steps = []

    def value():
        reference = f"@r{chosen.randrange(1, withheld + 2)}"
        return chosen.choice((reference, f"{reference}/to", f"about {reference}", "trusted", "bob"))

    def call():
        kinds = {
            "page": {},
            "picture": {},
            "failing": {"count": chosen.choice((1, value()))},
            "refusing": {"why": value()},
            "reader": {"task": value()},
            "recall": {"query": chosen.choice(("pay", "mallory", "@r1"))},
            "remember": {"text": value()},
            "outer": {},
            "extract": {"question": "The to and euros?"},
            "pay": {"to": value(), "euros": chosen.choice((1, value()))},
            "note": {"text": value()},
        }
        name = chosen.choice(tuple(kinds))
        return ToolCall(name, kinds[name])

    for _ in range(chosen.randrange(2, 6)):
        step = [call() for _ in range(chosen.choice((1, 1, 1, 2)))]
        withheld += len(step)
        steps.append(step)
    steps.append(chosen.choice(("Done.", "It says @r1.", "It says @r2/to and @r3.")))
    return steps


def tools_over(text):
    """Return tools whose results, errors, pictures and files contain `text`."""

    @tool(untrusted=True, effect="pure")
    async def picture() -> list:
        """Return a text, a picture and a file."""
        data = text[:40].encode() or b"x"
        return [
            text,
            Image(media_type="image/png", data=data),
            File(media_type="text/plain", data=data, name="a.txt"),
        ]

    @tool(untrusted=True, effect="pure")
    async def failing(count: int) -> str:
        """Fail with an error of the program."""
        raise ValueError(text)

    @tool(untrusted=True, effect="pure")
    async def refusing(why: str) -> str:
        """Fail with an error for the model."""
        raise ToolError(f"{why}: {text}")

    @tool(name="note", sinks=())
    async def note(text: str) -> str:
        """Write a note, and repeat it."""
        return f"noted {text}"

    class Outer(OuterTool):
        async def execute(self, arguments, context):
            return len((await context.tools.call("page", {})).content)

    return [picture, failing, refusing, note, Outer()]


class Summarizer(LLM):
    """Writes summaries only between two messages, because the time of a summary otherwise depends on the scheduler."""

    name = "summarizer"

    def __init__(self):
        self.is_open = trio.Event()

    async def complete(self, chat, on_text=None):
        await self.is_open.wait()
        return ModelResponse(parts=(Text("They spoke."),), usage=Usage())

    async def write_waiting(self):
        """Write the pending summaries and hold back later ones."""
        self.is_open.set()
        await wait_all_tasks_blocked()
        self.is_open = trio.Event()


async def memories_of(folder, text):
    """Return memories of ada, one of which is the untrusted text."""
    found = LongTermMemory(f"sqlite:///{folder}/{uuid.uuid4().hex}.db")
    call = ToolCall("remember", {"text": f"note: {text[:500]}"})
    async with BareAgent("writer", llm=ScriptedLLM([call, "ok"]), long_term_memory=found) as agent:
        await agent.run("remember", session=await agent.create_session("ada"))
    return found


async def outcome(seed, text, answer, *, folder):
    """Run the program of a seed over an untrusted text. Return the planner's requests and the payments that ran."""
    chosen = random.Random(seed)
    has_memory, has_summary = chosen.random() < 0.2, chosen.random() < 0.3

    @tool(untrusted=True, effect="pure")
    async def page() -> str:
        """Read a page."""
        return text

    def read(chat):
        return f"It says {text}" if chat.messages[-1].role == "tool" else ToolCall("page", {})

    reader = BareAgent("reader", llm=ScriptedLLM(read, keep=0), tools=[page])
    script = random_script(chosen)
    script += random_script(chosen, withheld=len(script))
    options, summarizer = {}, Summarizer()
    if has_memory:
        options["long_term_memory"] = await memories_of(folder, text)
    if has_summary:
        options["memory"] = SummarizingMemory(llm=summarizer, trigger=300, keep=1)
    program = Program(script, *tools_over(text), reader.as_tool(), page=page, answer=answer, given=options)
    async with open_runtime() as runtime:
        await runtime.start(program.agent)
        session = await program.agent.create_session("ada")
        for number in range(2):
            await session.chat("go" if number == 0 else "go on")
            await session.wait_idle()
            await summarizer.write_waiting()
    return program.shown, program.paid


@pytest.mark.parametrize("seed", range(PROGRAMS))
async def test_two_runs_that_differ_in_untrusted_text_are_equal_for_the_planner(seed, tmp_path):
    """Tools, errors, media, delegation, memories, summaries and code change no request to the planner, and no call that runs."""
    chosen = random.Random(-1 - seed)
    one, other = [
        await outcome(seed, untrusted_text(chosen), untrusted_text(chosen), folder=tmp_path) for _ in range(2)
    ]
    assert one == other
    assert len(one[0]) > 2
