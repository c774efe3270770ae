"""Bounds of one answer: the number of its calls, and the size of their arguments."""

import json
from datetime import timedelta

import pytest

from actgent import BareAgent, Limits, ScriptedLLM, SimpleAgent, StepsAgent, ToolCall, tool
from actgent.errors import ConfigurationError
from actgent.testing import assert_valid_transcript
from actgent.turns.calls.tool_calls import excess_of


class Counter:
    """A tool that counts its calls."""

    def __init__(self):
        self.ran = 0

        @tool(thread=False)
        def take(n: int = 0, text: str = "") -> str:
            """Take something."""
            self.ran += 1
            return f"took {n}"

        self.tool = take


def native(arguments):
    return [ToolCall("take", each) for each in arguments]


def simple(arguments):
    content = [{"name": "take", "parameters": each} for each in arguments]
    return json.dumps({"messageType": "TOOL_INVOCATION", "content": content})


def steps(arguments):
    return json.dumps({"tool_calls": [{"tool_name": "take", "parameters": each} for each in arguments]})


OVER = {
    BareAgent: "done",
    SimpleAgent: '{"messageType": "DIRECT_RESPONSE", "content": "done"}',
    StepsAgent: '{"final_answer": "done"}',
}
FORMS = [(BareAgent, native), (SimpleAgent, native), (SimpleAgent, simple), (StepsAgent, steps)]


async def asking(make, form, arguments, **options):
    """Return the calls that ran and the model's next request, for an answer with these calls."""
    counter = Counter()
    llm = ScriptedLLM([form(arguments), OVER[make]])
    async with make("a", llm=llm, tools=[counter.tool], **options) as agent:
        assert (await agent.run("go")).text == "done"
    assert_valid_transcript(llm.chats[-1])
    return counter.ran, repr(list(llm.chats[-1].messages[2:]))


@pytest.mark.parametrize(("make", "form"), FORMS)
async def test_answer_with_too_many_calls_runs_none(make, form):
    """Sixty-four calls of one answer run. With more none runs, each has a result, and the model reads the reason."""
    ran, reply = await asking(make, form, [{"n": n} for n in range(64)])
    assert (ran, "at most" in reply) == (64, False)
    ran, reply = await asking(make, form, [{"n": n} for n in range(65)])
    assert ran == 0
    assert "no call of this answer ran: it has 65 calls, and the limit is 64" in reply
    ran, reply = await asking(make, form, [{"n": n} for n in range(1_000)])
    assert ran == 0
    assert "1,000 calls" in reply


@pytest.mark.parametrize(("make", "form"), FORMS)
async def test_answer_with_too_large_arguments_runs_none(make, form):
    """The limit is a million bytes over all calls of the answer."""
    ran, _ = await asking(make, form, [{"n": n, "text": "x" * 490_000} for n in range(2)])
    assert ran == 2
    for arguments in ([{"text": "x" * 1_000_000}], [{"n": n, "text": "x" * 510_000} for n in range(2)]):
        ran, reply = await asking(make, form, arguments)
        assert ran == 0
        assert "and the limit is 1,000,000. Pass shorter arguments" in reply


async def test_arguments_that_cannot_be_decoded_count():
    """Undecodable arguments would be repeated to the model in full."""
    ran, reply = await asking(BareAgent, native, ["{" * 1_000_001])
    assert ran == 0
    assert "1,000,001 bytes" in reply


@pytest.mark.parametrize(("make", "form"), FORMS)
async def test_model_reads_the_error_of_a_ten_megabyte_answer(make, form):
    """The model's own answer is shortened in the next request, so that the error fits."""
    ran, reply = await asking(make, form, [{"text": "x" * 10_000_000}])
    assert ran == 0
    assert "and the limit is 1,000,000. Pass shorter arguments" in reply
    assert len(reply) < 10_000


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"text": "x" * 10}, 21),
        ({"text": "\u00e9"}, 13),
        ({}, 2),
        ("", 2),
        ("{\u00e9\ud800", 6),
        ({"n": {1j}}, len("{'n': {1j}}")),
        ({"n": object}, len("{'n': <class 'object'>}")),
        ({"after": timedelta}, len("{'after': <class 'datetime.timedelta'>}")),
    ],
)
def test_arguments_count_to_the_byte(arguments, size):
    """The limit counts the JSON bytes of all calls together.

    Values that JSON cannot encode count by their Python text.
    """
    calls = [ToolCall("take", arguments), ToolCall("take", {})]
    assert excess_of(calls, Limits(argument_bytes=size + 2)) is None
    assert f"have {size + 2} bytes" in excess_of(calls, Limits(argument_bytes=size + 1))


async def test_limits_set_both_answer_bounds():
    """Each bound can be larger or smaller than the default."""
    ran, _ = await asking(
        BareAgent, native, [{"n": n, "text": "x" * 20_000} for n in range(100)],
        limits=Limits(answer_calls=100, argument_bytes=10_000_000),
    )  # fmt: skip
    assert ran == 100
    ran, reply = await asking(BareAgent, native, [{"n": 1}, {"n": 2}], limits=Limits(answer_calls=1))
    assert (ran, "and the limit is 1. Make fewer" in reply) == (0, True)
    for wrong in ({"answer_calls": 0}, {"argument_bytes": 1.5}):
        with pytest.raises(ConfigurationError):
            Limits(**wrong)


async def test_rejected_calls_cost_no_budget():
    """The model may continue with fewer calls."""
    ran, reply = await asking(BareAgent, native, [{"n": n} for n in range(65)], limits=Limits(tool_calls=10))
    assert (ran, "65 calls" in reply) == (0, True)
