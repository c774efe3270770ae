"""The cost of reading a repetitive answer, as failing models write it, grows linearly with its length."""

import contextlib
import time

import pytest

from actgent.errors import ActgentError
from actgent.llm.rate_limiting.token_buckets import read_limits
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.plan.plan_answer_parsing import parse_planning_answer, split_thoughts
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.steps_protocol import Steps
from actgent.structured_output.extract_json import strip_code_fence
from actgent.tools.outputs.untrusted_result_delimiters import replace_special_tokens

from .conftest import read

MOST_SECONDS = 1.0
"""Limit per text. With backtracking these texts took 5 s and more."""
REPEATED = {
    "a fence of nothing": (strip_code_fence, "```" + "\n" * 2_000),
    "a fence in an answer": (lambda text: read(Bare(), text), '```json\n"function"' + " " * 20_000 + "x"),
    "thoughts in thoughts": (split_thoughts, "<think>" * 7_000 + "x"),
    "blanks before no title": (lambda text: parse_planning_answer(text, now=0), " " * 20_000 + "x"),
    "empty lines": (lambda text: read(Steps(), text), "it" + "\n" * 20_000 + "planned"),
    "blanks in an action": (lambda text: read(ReAct(), text), "Action: x" + " " * 20_000 + "y"),
    "lines before an input": (
        lambda text: read(ReAct(), text),
        "Action: x\n" + "\t " * 10_000 + "\nAction Input: {}",
    ),
    "blanks in a tag of a page": (replace_special_tokens, "<" + "\t" * 15_000),
    "a duration without end": (
        lambda text: read_limits(
            {
                "x-ratelimit-limit-requests": "1",
                "x-ratelimit-remaining-requests": "1",
                "x-ratelimit-reset-requests": f"x{text}",
            }
        ),
        "0" * 60_000,
    ),
}


@pytest.mark.parametrize(("reader", "text"), REPEATED.values(), ids=REPEATED)
def test_parsing_time_is_linear(reader, text):
    """Valid and rejected input are parsed in linear time."""
    begin = time.process_time()
    with contextlib.suppress(ActgentError):
        reader(text)
    assert time.process_time() - begin < MOST_SECONDS


def test_thought_ends_at_the_first_closing_tag():
    """A thought ends at the first closing tag. An unclosed tag is not a thought."""
    text = "It is<think>a<think>b</think> done</think>.<thinking>c</thinking> Well<think>d"
    thoughts, rest = split_thoughts(text)
    assert thoughts == "a<think>b\nc"
    assert rest == "It is done</think>. Well<think>d"
