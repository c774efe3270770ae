"""Recorded contents of any length are valid JSON."""

import json

from hypothesis import given, settings, strategies as st

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.observe.opentelemetry_tracing import shorten_json, shorten_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=10), inner, max_size=8),
    max_leaves=40,
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.integers(40, 600))
def test_shortened_json_is_valid_and_fits(value, limit):
    """The text may contain escapes, which are longer in JSON than their characters."""
    text = shorten_json(value, limit)
    json.loads(text)
    assert len(text) <= limit


@given(st.lists(st.text(max_size=3000), min_size=1, max_size=30))
def test_the_newest_message_is_kept(texts):
    """Older messages are left out before the newest one, and no message loses its role."""
    messages = [{"role": "user", "parts": [{"type": "text", "content": each}]} for each in texts]
    kept = json.loads(shorten_json(messages, 8192))
    content = kept[-1]["parts"][0]["content"]
    assert content == texts[-1] or (content.endswith("...") and texts[-1].startswith(content[:-3]))
    assert {each["role"] for each in kept} == {"user"}
    assert len(texts[-1]) > 1000 or content == texts[-1]


def test_old_messages_are_left_out_first():
    """The newest message is complete, and older messages are shortened more and more."""
    messages = [{"number": number, "text": "x" * 2000} for number in range(30)]
    kept = json.loads(shorten_json(messages, 8192))
    assert kept[-1] == messages[-1]
    numbers = [each["number"] for each in kept if "number" in each]
    assert numbers == [*range(30 - len(numbers), 30)]
    assert 5 < len(numbers) < 30


def test_a_json_result_stays_json():
    """A text that is not JSON is truncated."""
    rows = json.dumps([{"id": number} for number in range(1000)])
    assert json.loads(shorten_text(rows, 500))[-1] == {"id": 999}
    assert shorten_text("x" * 600, 500) == "x" * 497 + "..."
    assert shorten_text("[" + "x" * 600, 500).endswith("...")


async def test_attributes_of_a_long_conversation_are_json_in_the_format_of_the_conventions(recorder):
    """The prompt, tools, messages and answer of the request exceed the limit many times."""

    @tool
    def read(page: int) -> str:
        """Read a page."""
        return '"' * 20_000

    llm = ScriptedLLM([ToolCall("read", {"page": 1}, "c1"), "The end."])
    agent = BareAgent("clerk", llm=llm, tools=[read], role="r" * 20_000)
    async with open_runtime(telemetry=recorder.telemetry(content=True)) as runtime:
        await runtime.start(agent)
        await agent.run("x" * 20_000)
    first, second = (dict(span.attributes) for span in recorder.of("chat"))
    (called,) = recorder.of("execute_tool")
    contents = {
        name: json.loads(value)
        for name, value in second.items()
        if name.endswith(("messages", "instructions", "definitions"))
    }
    assert set(contents) == {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
    }
    (system,) = contents["gen_ai.system_instructions"]
    assert (system["type"], "rrr" in system["content"]) == ("text", True)
    definition = contents["gen_ai.tool.definitions"][0]
    assert (definition["type"], definition["name"], definition["description"]) == (
        "function",
        "read",
        "Read a page.",
    )
    assert definition["parameters"]["properties"]["page"]["type"] == "integer"
    newest = contents["gen_ai.input.messages"][-1]
    assert newest["parts"][0]["id"] == "c1"
    assert newest["parts"][0]["response"].endswith("...")
    (answer,) = contents["gen_ai.output.messages"]
    assert answer == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "The end."}],
        "finish_reason": "stop",
    }
    (call,) = json.loads(first["gen_ai.output.messages"])[0]["parts"]
    assert call == {"type": "tool_call", "id": "c1", "name": "read", "arguments": {"page": 1}}
    assert json.loads(called.attributes["gen_ai.tool.call.arguments"]) == {"page": 1}
    assert called.attributes["gen_ai.tool.description"] == "Read a page."
    for span in recorder.spans:
        assert all(len(value) <= 8192 for value in span.attributes.values() if isinstance(value, str))


async def test_redaction_applies_to_each_text_and_keeps_json_valid(recorder):
    """A replacement that contains quotes does not break the JSON."""
    telemetry = recorder.telemetry(content=True, redact=lambda text: text.replace("secret", '"***"'))
    agent = BareAgent("clerk", llm=ScriptedLLM(["a secret"]), role="secret role")
    async with open_runtime(telemetry=telemetry) as runtime:
        await runtime.start(agent)
        await agent.run("my secret")
    (span,) = recorder.of("chat")
    assert json.loads(span.attributes["gen_ai.input.messages"])[0]["parts"][0]["content"] == 'my "***"'
    assert json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == 'a "***"'
    assert "secret" not in "".join(each.to_json() for each in recorder.spans)
