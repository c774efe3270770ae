"""Custom protocols: a pair of template and classifier, and a protocol with two stages."""

import json
from typing import ClassVar

import pytest

from actgent.errors import ParseError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender, Text
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Continue, Profile, Protocol, Request, SendReply, TurnView
from actgent.structured_output.extract_json import extract_only

from .conftest import read, view


class Haiku(Protocol):
    """A custom pair that accepts three lines and retries other answers."""

    name: ClassVar[str] = "haiku"
    template: ClassVar[str] = "You are {{ profile.name }}. Answer with three lines."

    def read(self, answer, view):
        lines = answer.text.strip().splitlines()
        if len(lines) != 3:
            raise ParseError(f"{len(lines)} lines instead of three", answer.text)
        return [SendReply(text=" / ".join(lines))]


class Drafted(Protocol):
    """A protocol with two stages: an outline, then the answer. The second model call has another prompt."""

    name: ClassVar[str] = "drafted"
    template: ClassVar[str] = "You are {{ profile.name }}, a careful writer."
    max_iterations: int | None = 4

    def request(self, view):
        if view.stage == "write":
            return Request(tail="Write the final text from the outline.", model="writer")
        return Request(tail='First give an outline: {"points": ["...", "..."]}')

    def read(self, answer, view):
        if view.stage == "write":
            return [SendReply(text=answer.text)]
        points = extract_only(answer.text, self._reason)["points"]
        return [Continue("write", "Outline:\n" + "\n".join(f"- {point}" for point in points))]

    def partial(self, text):
        return None if text.lstrip().startswith(("{", "`")) else text

    @staticmethod
    def _reason(value):
        points = value.get("points") if isinstance(value, dict) else None
        return None if isinstance(points, list) and points else 'give {"points": [...]}'


def test_custom_protocol_needs_template_and_classifier():
    assert (
        PromptManager(Haiku(), Profile(name="poet")).system_prompt()
        == "You are poet. Answer with three lines."
    )
    assert read(Haiku(), "a\nb\nc") == [SendReply(text="a / b / c")]
    with pytest.raises(ParseError, match="2 lines instead of three"):
        read(Haiku(), "a\nb")


def test_first_stage_starts_a_second_call():
    """The first answer starts a second call with another prompt. The second answer ends the turn."""
    protocol = Drafted()
    first = view("Tell me of Oslo")
    assert "outline" in protocol.request(first).tail
    (more,) = protocol.read(ModelResponse(parts=(Text(json.dumps({"points": ["sea", "hills"]})),)), first)
    assert more == Continue("write", "Outline:\n- sea\n- hills")
    note = Message(
        session_id="s", sender=Sender("system", "system"), parts=(Text(more.note),), stage=more.stage
    )
    second = TurnView(
        message=note, record=[*first.record, note], state={}, stage=note.stage, calls=1, profile=first.profile
    )
    assert protocol.request(second) == Request(tail="Write the final text from the outline.", model="writer")
    assert protocol.read(ModelResponse(parts=(Text("Oslo lies by the sea."),)), second) == [
        SendReply(text="Oslo lies by the sea.")
    ]


def test_each_stage_retries_its_own_errors():
    with pytest.raises(ParseError, match="points"):
        read(Drafted(), '{"points": []}')
