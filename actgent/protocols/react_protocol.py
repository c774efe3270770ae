"""The `react` protocol: reason about the question, then name one primary action.

It follows "ReAct: Synergizing Reasoning and Acting in Language Models" (Yao et al., arXiv 2210.03629),
with the answer as one JSON object. Answers in the paper's line format (`Thought:`, `Action:`,
`Action Input:`, `Final Answer:`) are accepted if the input is a JSON object.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import ParseError
from actgent.errors.text_escaping import quoted, shown
from actgent.llm.model_interface import ModelResponse
from actgent.messages import ToolCall
from actgent.structured_output.extract_json import extract_only, loads, parse_partial_json, strip_code_fence

from .answer_content_parsing import (
    DIRECT_RESPONSE,
    TOOL_INVOCATION,
    answer_text,
    find_type,
    infer_type,
    invocation_reason,
    join_type_names,
    matching_data,
    missing_type_error,
    outcomes_of_type,
    parse_encoded_calls,
    stray_instruction_reason,
    text_in,
    to_call_tools,
    type_mismatch_reason,
)
from .direct_or_react_choice import KeywordStrategy, Mode, Strategy
from .partial_answers import PartialAnswer, follow_strings
from .prompt_rendering import NAMED_TYPES, WHO
from .protocol_interface import (
    MESSAGE_TYPE,
    ClassificationType,
    Outcome,
    Protocol,
    Request,
    SendReply,
    TurnView,
)

_REASONING = ("question_nature", "context", "additional_info")
"""Keys in an answer that hold the model's explanations."""
_KEYS = frozenset(("primary_action", *_REASONING))
_ACTION_KEYS = frozenset(("response_purpose", "response_content", "response_description", MESSAGE_TYPE))
_CALL_KEYS = frozenset(("name", "parameters"))
_FORMAT = """\

Answer with exactly one JSON object and nothing else:
{
  "question_nature": "SIMPLE" or "COMPLEX",
  "context": {"understanding": "...", "approach": "...", "considerations": ["..."]},
  "primary_action": {
    "response_purpose": "DIRECT_RESPONSE" or "TOOL_INVOCATION",
    "response_description": "<for DIRECT_RESPONSE: the text that the user reads>",
    "messageType": "<for DIRECT_RESPONSE: the name of the type that response_content has; leave it out for text>",
    "response_content": <see below>
  },
  "additional_info": {"results": "...", "analysis": "...", "next_steps": ["..."]}
}

TOOL_INVOCATION: response_content is {"name": "<tool>", "parameters": {...}}, or a list of such calls that
do not need each other's results; the results come as the next message, and you go on from there.
DIRECT_RESPONSE: response_content is what the type in messageType asks for, or text if none of the types below fits.
"""

_MODES: dict[Mode, Request] = {
    "direct": Request(tail="Answer this directly: question_nature SIMPLE, context one short sentence."),
    "react": Request(
        tail="Reason first: question_nature COMPLEX, context with understanding, approach and considerations; "
        "use tools until you know enough for a DIRECT_RESPONSE."
    ),
}
_ACTION = re.compile(r"^[ \t]*\**Action\**[ \t]*:(.*)$", re.MULTILINE)
_MAX_LABEL_WORDS = 2
"""Maximum number of words in a label."""
_INPUT = re.compile(r"^[ \t]*\**Action Input\**[ \t]*:", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*\**Observation\**[ \t]*:", re.MULTILINE)
_FINAL = re.compile(r"^[ \t]*\**(?:Final[ ])?Answer\**[ \t]*:[ \t]*", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*\**(?:Thought|Action)\**[ \t]*:", re.MULTILINE)


class ReAct(Protocol):
    """Protocol in which the model reasons and calls tools until it gives a direct response.

    A strategy chooses for each turn between answering directly and reasoning first. The choice is written at
    the end of the prompt, so the system prompt never changes.
    """

    name: ClassVar[str] = "react"
    reserved_names = frozenset((DIRECT_RESPONSE, TOOL_INVOCATION))
    template: ClassVar[str] = WHO + _FORMAT + NAMED_TYPES

    def __init__(self, strategy: Strategy | None = None) -> None:
        self.strategy = strategy or KeywordStrategy()
        self.lookback = self.strategy.lookback

    def request(self, view: TurnView) -> Request:
        return _MODES[self.strategy.choose(view)]

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        text = answer_text(answer.text)
        if calls := parse_encoded_calls(text):
            return [calls]
        try:
            value = extract_only(text, _reason)
            return _add_reasoning(_act(value, view.profile.types), value)
        except ParseError:
            if not text.lstrip("` \t\r\n").startswith("{") and (outcomes := _read_lines(text)):
                return outcomes
            raise

    def partial(self, text: str) -> str | None:
        if '"response_description"' in text:
            return _partial_description(text)
        return _partial_final(text) if "Answer" in text and '"primary_action"' not in text else None

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_strings(self.partial))

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        action = {"response_purpose": "DIRECT_RESPONSE", "response_content": text}
        return (json.dumps({"primary_action": action}),)


# --- the JSON format -----------------------------------------------------------------------------


def _reason(value: Any) -> str | None:
    action = value.get("primary_action") if isinstance(value, dict) else None
    if not isinstance(action, dict):
        return 'the answer must be a JSON object with "primary_action"'
    content = action.get("response_content")
    if content is None:
        return "primary_action: response_content is missing"
    match action.get("response_purpose"):
        case "TOOL_INVOCATION":
            return invocation_reason(content, (action, _ACTION_KEYS), (value, _KEYS))
        case "DIRECT_RESPONSE":
            return None
        case purpose:
            return f"response_purpose must be {DIRECT_RESPONSE} or {TOOL_INVOCATION}, not {purpose!r:.200}"


def _user_text(action: dict[str, Any]) -> str | None:
    """Return the text for the user in an answer without tool calls: `response_description`, else the text in `response_content`. None if both are empty."""
    described = action.get("response_description")
    if isinstance(described, str) and described.strip():
        return described
    return text_in(action["response_content"])


def _act(value: dict[str, Any], kinds: Sequence[ClassificationType]) -> list[Outcome]:
    action = value["primary_action"]
    content = action["response_content"]
    if action["response_purpose"] == TOOL_INVOCATION:
        return [to_call_tools(content)]
    name = _type_name(action)
    if name is not None and kinds and not (name == DIRECT_RESPONSE and find_type(kinds, name) is None):
        kind = find_type(kinds, name)
        if kind is None:
            raise ParseError(f"Unknown messageType: {shown(name)} (known: {join_type_names(kinds)})")
        return _typed_outcomes(kind, _wrap_typed_answer(name, content), value)
    if name is None and (kind := infer_type(content, kinds)):
        if (
            kind.tool and len(kinds) > 1
        ):  # a tool call needs the explicit name: the model may have meant another type and made a mistake
            raise missing_type_error(kinds)
        return _typed_outcomes(kind, {MESSAGE_TYPE: kind.name, "content": content}, value)
    return [SendReply(text=_untyped_text(action, kinds), data=None if isinstance(content, str) else content)]


def _type_name(action: dict[str, Any]) -> str | None:
    """Return the type name of a direct response, which is in the action or in its content; None without a type name.

    Raises:
        ParseError: The name is not a text, or the action and the content name different types.
    """
    content = action["response_content"]
    outer = action.get(MESSAGE_TYPE)
    names = [] if outer is None else [outer]  # models write null for a member that they omit
    if isinstance(content, dict) and MESSAGE_TYPE in content:
        names.append(content[MESSAGE_TYPE])
    for name in names:
        if not isinstance(name, str):
            raise ParseError(f"messageType must be the name of a type, not {shown(name)}")
    if len(set(names)) > 1:
        raise ParseError(
            f"the answer names two types, {quoted(names[0])} and {quoted(names[1])}: name exactly one"
        )
    return names[0] if names else None


def _wrap_typed_answer(name: str, content: Any) -> dict[str, Any]:
    """Wrap the content of a direct response as a typed answer `{"messageType", ...}`."""
    is_named = isinstance(content, dict) and MESSAGE_TYPE in content
    return content if is_named else {MESSAGE_TYPE: name, "content": content}


def _typed_outcomes(kind: ClassificationType, typed: dict[str, Any], value: dict[str, Any]) -> list[Outcome]:
    """Convert a direct response of the type `kind` to outcomes.

    Raises:
        ParseError: The content does not fit the type, or arguments are outside of the content.
    """
    action = value["primary_action"]
    data = matching_data(typed, kind)
    data = typed.get("content") if data is None else data
    reason = (
        type_mismatch_reason(typed, kind)
        or stray_instruction_reason(kind, data, action, _ACTION_KEYS)
        or stray_instruction_reason(kind, data, value, _KEYS)
    )
    if reason:
        raise ParseError(reason)
    return outcomes_of_type(kind, data, _user_text(action))


def _untyped_text(action: dict[str, Any], kinds: Sequence[ClassificationType]) -> str:
    """Return the text of a direct response without a type.

    Data without text is rendered as JSON if the agent has no types.

    Raises:
        ParseError: The response has no text, and its data is empty, a tool call, or possibly meant as one of the types.
    """
    if words := _user_text(action):
        return words
    content = action["response_content"]
    if isinstance(content, dict) and content.keys() == _CALL_KEYS:
        raise ParseError(f"response_content is a tool call: response_purpose must be {TOOL_INVOCATION}")
    if kinds or content in ("", {}, []):
        raise ParseError(
            "primary_action: response_description is missing, and response_content has no known type"
        )
    return json.dumps(content, ensure_ascii=False)


def _add_reasoning(outcomes: list[Outcome], value: dict[str, Any]) -> list[Outcome]:
    """Add the model's explanations in the answer to each reply of the outcomes."""
    reasoning = {name: value[name] for name in _REASONING if value.get(name) not in (None, "", [], {})}
    if not reasoning:
        return outcomes
    return [
        attrs.evolve(each, reasoning=reasoning) if isinstance(each, SendReply) else each for each in outcomes
    ]


# --- the line format of the paper --------------------------------------------------------------------


def _read_lines(text: str) -> list[Outcome]:
    """Parse the `Action` and `Final Answer` lines of an answer to outcomes; an empty list for a text without these lines.

    An `Observation` in the answer is hallucinated, because results arrive as messages: text after it is ignored.

    Raises:
        ParseError: The text has several actions, an action and an answer, or an input that is not a JSON object.
    """
    actions = list(_ACTION.finditer(text))
    if actions and (invented := _OBSERVATION.search(text, actions[0].end())):
        text = text[: invented.start()]
        actions = list(_ACTION.finditer(text))
    final = _FINAL.search(text)
    if final and (not actions or final.start() < actions[0].start()):
        return [SendReply(text=_final_text(text, final.end()))]
    if final or len(actions) > 1:
        raise ParseError("write either one Action or a Final Answer, not more", text)
    return [_read_action(text, actions[0])] if actions else []


def _final_text(text: str, start: int) -> str:
    action = _ACTION.search(text, start)
    final = text[start : action.start() if action else None].strip()
    if text.lstrip().startswith("```") and final.count("```") % 2:
        final = final.removesuffix("```").rstrip()  # the end of a code fence around the whole answer
    if not final or final[0] in "{[":
        raise ParseError("the Final Answer must be text for the user", text)
    return final


def _read_action(text: str, action: re.Match[str]) -> Outcome:
    label = _INPUT.search(text, action.end())
    if label is None:
        raise ParseError(f"Action {quoted(action[1].strip())} must be followed by an Action Input", text)
    written = text[label.end() :].strip()
    if text.lstrip().startswith("```") and not written.startswith("```"):
        written = written.removesuffix("```")
    call = {"name": action[1].strip("`*\"' \t\r"), "parameters": loads(strip_code_fence(written))}
    between = _parse_labels(text[action.end() : label.start()])
    if reason := invocation_reason(call, (between, ())):
        raise ParseError(reason, text)
    return to_call_tools(call)


def _parse_labels(lines: str) -> dict[str, str]:
    """Return the values of lines such as `Label: value`, by label. Labels of more than two words are taken for prose."""
    found = (line.partition(":") for line in lines.splitlines())
    labels = {label.strip(" \t*"): value.strip() for label, _, value in found}
    return {label: value for label, value in labels.items() if len(label.split()) <= _MAX_LABEL_WORDS}


# --- partial answers -------------------------------------------------------------------


def _partial_description(text: str) -> str | None:
    value = parse_partial_json(text[max(text.find("{"), 0) :])
    action = value.get("primary_action") if isinstance(value, dict) else None
    if not isinstance(action, dict) or action.get("response_purpose") != DIRECT_RESPONSE:
        return None
    described = action.get("response_description")
    return described if isinstance(described, str) else None


def _partial_final(text: str) -> str | None:
    final = _FINAL.search(text)
    if final is None or _NEXT.search(text, final.end()) or _ACTION.search(text[: final.start()]):
        return None
    return text[final.end() :].strip("` \t\r\n") or None
