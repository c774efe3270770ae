"""Simulated model: random answers, delays and provider errors, and tool calls that match the schemas of the tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import trio

from actgent.errors import ModelTimeout, ProviderUnavailable, RateLimited, StreamInterrupted
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import Text, ToolCall, ToolSpec, Usage

from .seeded_choices import Choices
from .simulated_world import World

MAX_ROUNDS = 3
"""Maximum number of answers with tool calls to one user message."""
SLOW_SECONDS = 40_000.0
"""Duration of a model call or tool call that hangs."""
TEXT_PIECE_CHARACTERS = 8
MAX_SCHEMA_DEPTH = 6
_FAILURES = (RateLimited, ProviderUnavailable, ModelTimeout, StreamInterrupted, None, ZeroDivisionError)
"""Exceptions of a failing call; None means that the call hangs."""


class ModelObserver(Protocol):
    """Observer that receives each request of a simulated model, and may kill the simulated process."""

    async def on_request(self, agent: str, chat: ModelRequest) -> None: ...


class RandomModel(LLM):
    """Simulated model of one agent, with random answers of the seed."""

    name = "simulated"
    dialect = "scripted"

    def __init__(
        self, world: World, agent: str, observer: ModelObserver, *, fault_chance: float, second_call: float
    ) -> None:
        self.world = world
        self.agent = agent
        self.observer = observer
        self.fault_chance = fault_chance
        """Probability that a call fails."""
        self.second_call = second_call
        """Probability of a second tool call in an answer with a tool call."""

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        choices, life, name = self.world.choices, self.world.life, f"model of {chat.session}"
        await self.observer.on_request(self.agent, chat)
        await trio.sleep(choices.pick(f"{name}: delay", (0, 0.01, 0.5, 2, 20)))
        if choices.happens(f"{name}: failure", self.fault_chance):
            await self._fail(choices, name)
        calls = self._calls(chat, name)
        self.world.check_alive(life)
        usage = Usage(input_tokens=10, output_tokens=5)
        if calls:
            self.world.record("model", f"the model calls {', '.join(map(describe_call, calls))}")
            return ModelResponse(parts=calls, stop="tool_calls", model=self.name, usage=usage)
        text = self._text(chat, name)
        if on_text is not None:
            for start in range(0, len(text), TEXT_PIECE_CHARACTERS):
                await trio.sleep(choices.pick(f"{name}: piece delay", (0, 0, 0.001, 0.2)))
                await on_text(text[start : start + TEXT_PIECE_CHARACTERS], 0)
        self.world.check_alive(life)
        self.world.record("model", f"the model answers {text!r}", is_shown=False)
        return ModelResponse(parts=(Text(text),), model=self.name, usage=usage)

    async def _fail(self, choices: Choices, name: str) -> None:
        error = choices.pick(f"{name}: error", _FAILURES)
        if error is None:
            self.world.record("model", "the model does not answer")
            await trio.sleep(SLOW_SECONDS)
            return
        self.world.record("model", f"the model fails with {error.__name__}")
        raise error("simulated failure")

    def _calls(self, chat: ModelRequest, name: str) -> tuple[ToolCall, ...]:
        """Draw the tool calls of a simulated answer.

        Return no calls if the answer is text, or after `MAX_ROUNDS` rounds of calls.
        """
        choices = self.world.choices
        since = max((n for n, message in enumerate(chat.messages) if message.role == "user"), default=0)
        rounds = sum(message.role == "tool" for message in chat.messages[since:])
        if not chat.tools or rounds >= MAX_ROUNDS or not choices.happens(f"{name}: tool calls", 0.6):
            return ()
        values = ValueMaker(choices, name, _words_of(chat))
        made = []
        for _ in range(
            1
            + choices.happens(f"{name}: second call", self.second_call)
            + choices.happens(f"{name}: third call", 0.15)
        ):
            spec = choices.pick(f"{name}: tool", self._repeat_favourite_tool(chat.tools))
            arguments = values.make(spec.parameters)
            if choices.happens(f"{name}: wrong arguments", 0.05):
                arguments = {"unknown_parameter": 1}
            made.append(ToolCall(spec.name, arguments if isinstance(arguments, dict) else {}))
        return tuple(made)

    def _repeat_favourite_tool(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Repeat one tool in the list, so that it is drawn as often as all other tools together.

        The seed draws this tool, so each tool is frequent in some seeds.
        """
        favorites = self.world.favorites
        if self.agent not in favorites:
            favorites[self.agent] = self.world.choices.fraction(f"favorite tool of {self.agent}")
        favorite = tools[int(favorites[self.agent] * len(tools))]
        return (*tools, *[favorite] * (len(tools) - 1))

    def _text(self, chat: ModelRequest, name: str) -> str:
        choices = self.world.choices
        if chat.response_format is not None and not choices.happens(f"{name}: answer of another form", 0.1):
            values = ValueMaker(choices, name, _words_of(chat))
            return json.dumps(values.make(chat.response_format.schema))
        return f"answer {choices.number(f'{name}: text', 1, 9999)}"


class ValueMaker:
    """Makes random values that match a JSON Schema."""

    def __init__(self, choices: Choices, name: str, words: Sequence[str]) -> None:
        self._choices = choices
        self._name = name
        self._words = words
        """Words of the conversation, which texts are made of."""
        self._root: Mapping[str, Any] = {}

    def make(self, schema: Mapping[str, Any]) -> Any:
        """Draw a random value that matches a JSON Schema. Keywords such as `pattern` are ignored."""
        self._root = schema
        return self._value(schema, 0)

    def _pick(self, options: Sequence[Any]) -> Any:
        return self._choices.pick(f"{self._name}: value", options)

    def _value(self, schema: Any, depth: int) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case for each keyword
        if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
            return None
        if "$ref" in schema:
            return self._value(self._resolve(str(schema["$ref"])), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._pick(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                return self._value(self._pick(schema[keyword]), depth + 1)
        if schema.get("allOf"):
            return self._value(schema["allOf"][0], depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self._pick(kind)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            low = int(schema.get("minItems", 0))
            return [
                self._value(schema.get("items", {}), depth + 1) for _ in range(low + self._pick((0, 1, 2)))
            ]
        if kind == "boolean":
            return self._pick((True, False))
        if kind == "null":
            return None
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        text = self._pick(self._words)
        return str(text).ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 1_000))]

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self._value(each, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required or self._pick((True, False))
        }

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", max(100, low + 100)))
        options = {
            low + ("exclusiveMinimum" in schema),
            (low + high) // 2,
            high - ("exclusiveMaximum" in schema),
            1,
            80,
        }
        allowed = sorted(each for each in options if low <= each <= high)
        return int(self._pick(allowed)) if whole else float(self._pick(allowed))

    def _resolve(self, reference: str) -> Any:
        found: Any = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, Mapping) else {}
        return found


def describe_call(call: ToolCall) -> str:
    """Format a tool call as text, for example `refund(order=7, euros=80)`."""
    if isinstance(call.arguments, str):
        return f"{call.name}({call.arguments})"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _words_of(chat: ModelRequest) -> list[str]:
    """Return the first words of the newest user message, without punctuation. The random model uses them as tool arguments."""
    newest = next((each for each in reversed(chat.messages) if each.role == "user"), None)
    text = "" if newest is None else " ".join(part.text for part in newest.parts if isinstance(part, Text))
    words = [word.strip(".,:;!?\"'()[]") for word in text.split()]
    return [word for word in words[:20] if word] or ["word"]
