"""Partial answers: incremental reading shows the same text as reading the whole text for each piece, in linear time."""

import json
import random

import pytest

from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.goal.goal_protocol import Goal
from actgent.protocols.partial_answers import GROWTH_DIVISOR, SHORT_TEXT_CHARS, PartialAnswer
from actgent.protocols.plan import Planning
from actgent.protocols.protocol_interface import Protocol, SendReply
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple
from actgent.protocols.steps_protocol import Steps

LETTERS = 'ab c"\\\n\t{}[]:,</>éß€😀\u2028\x7f'
PROTOCOLS = (Bare, Simple, ReAct, Router, Steps, Planning, Goal)


def naive(protocol, pieces):
    """Return the shown pieces if `partial` reads the whole text for each piece."""
    text, shown, tokens = "", 0, []
    for piece in pieces:
        text += piece
        visible = protocol.partial(text)
        if visible is not None and len(visible) > shown:
            tokens.append(visible[shown:])
            shown = len(visible)
    return tokens


def parse_partial_json(protocol, pieces):
    """Return the shown pieces of an incremental read, with the rest at the end."""
    growth = protocol.partial_answer()
    return [said for said in (*map(growth.add, pieces), growth.finish()) if said]


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_late_follower_gets_the_shown_text(kind):
    """A follower that starts during an answer receives the text that earlier followers have received."""
    protocol = kind()
    growth, shown = protocol.partial_answer(), ""
    for letter in protocol.script("All is well, " * 20)[-1]:
        shown += growth.add(letter)
        assert growth.visible == shown
    assert bool(shown) == (kind not in (Goal, ReAct))  # both show only whole answers


# --- answers ---------------------------------------------------------------------------------


def words(chance, size=40):
    return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(size)))


def filler(chance, depth=2):
    """Return a strategy for JSON values."""
    kind = chance.randrange(5 if depth else 3)
    if kind == 3:
        return [filler(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 4:
        return {words(chance, 5): filler(chance, depth - 1) for _ in range(chance.randrange(4))}
    return [words(chance), chance.random() * 100, chance.choice([None, True, 7])][kind]


def shuffled(chance, members):
    return dict(chance.sample(list(members.items()), len(members)))


def objects(chance, text):
    """Return an answer of each protocol with object answers."""
    yield {"messageType": chance.choice(["DIRECT_RESPONSE", "greeting", "TOOL_INVOCATION"]), "content": text}
    action = {"response_purpose": "DIRECT_RESPONSE", "response_description": text, "response_content": text}
    yield {"context": filler(chance), "primary_action": shuffled(chance, action), "more": filler(chance)}
    yield {"top_level_intent": chance.choice(["CONVERSATION", "ACTION"]), "response": text}
    yield {"final_answer": text, "thought": words(chance)}
    yield {"plan": text}
    yield {"tool_thought": text, "tool_calls": [{"tool_name": "x", "parameters": filler(chance)}]}


def prose(chance, text):
    yield text
    yield f"<think>{words(chance)}</think>\n{text}"
    yield f"<thinking>{words(chance)}"
    yield f"Thought: {words(chance)}\nFinal Answer: {text}"
    yield f"Thought: x\nFinal Answer: {text}\nThought: {text}"


def answers(chance):
    """Return answers of all protocols: whole, fenced, after prose, and with an extra character."""
    content = words(chance, 200)
    texts = [*prose(chance, content)]
    for value in objects(chance, content):
        members = shuffled(chance, value)
        text = json.dumps(members, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 2]))
        texts += [text, f"```json\n{text}\n```", f"Sure: {text} Bye", text.replace("\\n", "\n")]
    for text in list(texts):
        place = chance.randrange(len(text) + 1)
        texts.append(text[:place] + chance.choice(LETTERS) + text[place:])
        texts.append(text[:place] + text[place + 1 :])
    return texts


def split(chance, text, maximum):
    pieces = []
    while text:
        size = chance.randrange(1, maximum + 1)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", PROTOCOLS)
def test_incremental_reading_shows_equal_pieces(kind, seed):
    """For short answers of any kind and in any pieces, both methods show the same pieces."""
    chance, protocol = random.Random(seed), kind()
    for text in answers(chance):
        pieces = split(chance, text, chance.choice([1, 3, 10, 1000]))
        assert parse_partial_json(protocol, pieces) == naive(protocol, pieces), pieces


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", PROTOCOLS)
def test_incremental_reading_shows_equal_text_of_long_answers(kind, seed):
    """The total shown text is equal. If a read is skipped, a later read shows its text."""
    chance, protocol = random.Random(seed), kind()
    content = "".join(words(chance) for _ in range(300))
    *may_be_shown, taken_back = prose(chance, content)
    for text in (*may_be_shown, *(json.dumps(shuffled(chance, v)) for v in objects(chance, content))):
        pieces = split(chance, text, 40)
        assert "".join(parse_partial_json(protocol, pieces)) == "".join(naive(protocol, pieces))
    pieces = split(chance, taken_back, 40)
    assert "".join(naive(protocol, pieces)).startswith("".join(parse_partial_json(protocol, pieces)))


def test_declared_output_does_not_change_the_shown_text():
    """A wrapper delegates to its inner protocol."""
    for kind in PROTOCOLS:
        protocol = kind().with_output({"type": "object"})
        text = json.dumps({"messageType": "greeting", "content": "hello", "final_answer": "hello"})
        assert parse_partial_json(protocol, text) == naive(protocol, text)


# --- costs ---------------------------------------------------------------------------------------


class Own(Protocol):
    """A custom protocol that defines only `partial`."""

    name = "own"
    template = ""

    def read(self, answer, view):
        return [SendReply(text=answer.text)]

    def partial(self, text):
        return text.removeprefix("> ")


def looked_at(kind, text, monkeypatch, size=4):
    """Return the number of characters that all calls of `partial` read, and the shown text."""
    read = []
    partial = kind.partial
    monkeypatch.setattr(kind, "partial", lambda self, text: read.append(len(text)) or partial(self, text))
    shown = parse_partial_json(kind(), [text[start : start + size] for start in range(0, len(text), size)])
    monkeypatch.undo()
    return sum(read), shown


def forms(text):
    """Yield answers with a long text inside, before or after the shown text."""
    describe = {"response_purpose": "DIRECT_RESPONSE", "response_description": text, "response_content": "x"}
    yield Bare, text
    yield Bare, f"<think>{text}</think>hi"
    yield Simple, json.dumps({"messageType": "greeting", "content": text})
    yield Simple, json.dumps({"content": text, "messageType": "greeting"})
    yield (
        Simple,
        json.dumps({"messageType": "TOOL_INVOCATION", "content": {"name": "x", "parameters": {"a": text}}}),
    )
    yield ReAct, json.dumps({"context": "x", "primary_action": describe})
    yield ReAct, json.dumps({"context": text, "primary_action": describe | {"response_description": "x"}})
    yield ReAct, f"Thought: I know\nFinal Answer: {text}"
    yield Router, json.dumps({"top_level_intent": "CONVERSATION", "response": text})
    yield Steps, json.dumps({"final_answer": text, "thought": "x"})
    yield Steps, json.dumps({"plan": text})
    yield Planning, text
    yield Planning, json.dumps({"plan": text})
    yield Goal, json.dumps({"action": "plan", "params": {"steps": [text]}})
    yield Own, f"> {text}"


@pytest.mark.parametrize("number", range(len(list(forms("")))))
@pytest.mark.parametrize("answer", ["word ", 'é"\\\n', "\u20ac😀"], ids=["words", "escapes", "wide"])
def test_partial_reads_take_linear_time(number, answer, monkeypatch):
    """In pieces of four characters, the number of characters read grows linearly with the text."""
    for length in (10_000, 40_000):
        kind, text = list(forms(answer * (length // len(answer))))[number]
        read, shown = looked_at(kind, text, monkeypatch)
        assert read < 4 * GROWTH_DIVISOR * len(text) + SHORT_TEXT_CHARS**2
    assert "".join(shown) == "".join(naive(kind(), [text]))


@pytest.mark.parametrize("kind", [Bare, Simple, ReAct, Router, Steps, Planning])
def test_streamed_text_is_not_parsed_again(kind, monkeypatch):
    """A long text arrives in deltas and needs no second parse."""
    texts = {k: text for k, text in forms("word " * 20_000) if "word word" in text and k is kind}
    first = next(text for k, text in forms("word " * 20_000) if k is kind)
    read, shown = looked_at(kind, first, monkeypatch)
    assert texts
    assert read < SHORT_TEXT_CHARS * 100 + 5 * len(first)
    assert len(shown) > len(first) / 5


class FirstLine(Simple):
    """A subclass that shows less than its parent."""

    def partial(self, text):
        shown = super().partial(text)
        return shown and shown.split("\n")[0]


class Both(FirstLine):
    """A class that inherits the override."""


@pytest.mark.parametrize("kind", [FirstLine, Both])
def test_overridden_partial_is_used(kind):
    """The follower of the parent class is not used, so no text bypasses the override."""
    text = json.dumps({"messageType": "greeting", "content": "one\ntwo"})
    assert parse_partial_json(kind(), text) == naive(kind(), text) == ["o", "n", "e"]
    assert parse_partial_json(kind().with_output({"type": "object"}), text) == ["o", "n", "e"]


def test_growth_is_used_if_partial_is_overridden_with_it():
    """Only an override of `partial` alone replaces an inherited `growth`."""

    class Shouting(Simple):
        def partial(self, text):
            return text.upper()

    class Silent(Simple):
        def partial(self, text):
            return text

        def partial_answer(self):
            return PartialAnswer(lambda _: None)

    class Plain(Simple):
        pass

    pieces = ['{"messageType": ', '"DIRECT_RESPONSE", "content": "hi"}']
    assert "".join(parse_partial_json(Shouting(), pieces)) == "".join(pieces).upper()
    assert parse_partial_json(Silent(), pieces) == []
    assert Plain.partial_answer is Simple.partial_answer
