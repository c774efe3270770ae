"""Random pairs of response types and random answers: the tool of the type that the answer names is the only one that runs."""

import json
import os
import random

import pytest

from actgent import Agent, FunctionTool, Limits, Protocol, ScriptedLLM
from actgent.protocols import make_protocol

PAIRS = 10_000 if os.environ.get("ACTGENT_SOAK") else 300
PARTS = 10
"""The pairs are divided into this many tests."""
NAMES = ("Create", "Delete", "note", "send mail", "Löschen")
KEYS = ("name", "id", "to", "content", "confirm", "text")
WRONG = ("create", "DELETE", "Undo", "", "Create ", "TOOL_INVOCATION", 5, None)


def random_schema(rng: random.Random, name: str):
    """Return a template, a JSON Schema, a schema of the whole answer, JSON text of one of them, or no schema."""
    keys = rng.sample(KEYS, rng.randint(1, 3))
    template = {key: rng.choice(["<text>", ["<one>"], "string", {"first": "<x>"}]) for key in keys}
    properties = {key: rng.choice([{}, {"type": "string"}, {"type": "array"}]) for key in keys}
    schema = {"type": "object", "properties": properties, "required": keys[: rng.randint(0, len(keys))]}
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    whole = {"messageType": rng.choice([name, "<name>", "string"]), **template}
    made = rng.choice([template, template, schema, schema, whole, {}, {"type": "string"}])
    return json.dumps(made) if rng.random() < 0.3 else made


def random_data(rng: random.Random, types):
    """Return content that has the form of one of the types, nearly has it, or has no form at all."""
    value = lambda: rng.choice(["bob", ["bob"], {"first": "bob"}, "", [], 7])  # noqa: E731
    if rng.random() < 0.15:
        return rng.choice(["bob", ["bob"], {}, 7])
    schema = rng.choice(types)["schema"]
    schema = json.loads(schema) if isinstance(schema, str) else schema
    keys = [key for key in schema.get("properties", schema) if key in KEYS] or ["name"]
    data = {key: value() for key in keys if rng.random() < 0.95}
    if rng.random() < 0.3:
        data[rng.choice(KEYS)] = value()
    return data


def random_answer(rng: random.Random, protocol: str, types):
    """Return an answer of a protocol, and the names of types in the answer."""
    data = random_data(rng, types)
    known = [each["name"] for each in types]
    names = [rng.choice(WRONG) if rng.random() < 0.15 else rng.choice(known)]
    inside = (
        {"messageType": names[0], **data}
        if isinstance(data, dict)
        else {"messageType": names[0], "content": data}
    )
    if protocol != "react":
        beside = rng.choice(
            [
                {"messageType": names[0], "content": data},
                inside,
                {"messageType": names[0], "content": inside},
                data,
            ]
        )
        if beside is data:
            names = []
        if protocol == "router" and isinstance(beside, dict) and rng.random() < 0.3:
            action = rng.choice(known)
            beside, names = (
                {"top_level_intent": "ACTION", "second_level_intent": action, **beside},
                [*names, action],
            )
        return beside, names
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": data}
    match rng.randrange(5):
        case 0:
            names = []
        case 1:
            action["messageType"] = names[0]
            names = [name for name in names if name is not None]  # null means an omitted member
        case 2:
            action["response_content"] = inside
        case 3:
            action["response_content"] = {"messageType": names[0], "content": data}
        case _:
            second = rng.choice([*known, "Undo"])
            action |= {"messageType": second, "response_content": inside}
            names.append(second)
    if rng.random() < 0.5:
        action["response_description"] = "here it is"
    return {"primary_action": action}, names


async def tools_that_run(protocol: Protocol, types, answer):
    """Return the tools that run, and the events that are emitted, for one answer of the model."""
    ran, events = [], []
    tools = [
        FunctionTool(
            each["tool"],
            "Do it.",
            lambda _tool=each["tool"], **_: ran.append(_tool) or "done",
            parameters={"type": "object"},
            thread=False,
        )
        for each in types
    ]
    (plain,) = protocol.script("Done.")
    llm = ScriptedLLM(lambda _: json.dumps(answer) if len(llm.chats) == 1 else plain)
    async with Agent(
        "a", llm=llm, protocol=protocol, types=types, tools=tools, limits=Limits(model_calls=5)
    ) as agent:
        session = await agent.create_session("ada")
        session.on_event(lambda event: events.append(event.name))
        await agent.run("Do it.", session=session)
    return ran, events


@pytest.mark.parametrize("part", range(PARTS))
async def test_only_the_tool_of_the_named_type_runs(part):
    """An answer runs no tool of a type that the answer does not name."""
    rng = random.Random(part)
    counts = {"named": 0, "none": 0}
    for _ in range(PAIRS // PARTS):
        protocol = rng.choice(["simple", "react", "react", "router"])
        first, second = rng.sample(NAMES, 2)
        types = [
            {"name": name, "schema": random_schema(rng, name), "tool": f"tool{index}"}
            for index, name in enumerate((first, second))
        ]
        answer, names = random_answer(rng, protocol, types)
        ran, events = await tools_that_run(make_protocol(protocol), types, answer)
        by_tool = {each["tool"]: each for each in types}
        for tool in ran:
            assert len(ran) == 1, (types, answer)
            assert set(names) == {by_tool[tool]["name"]}, (types, answer, ran)
            counts["named"] += 1
        counts["none"] += not ran
        # The router passes unknown types on as events, and no event runs a tool.
        assert not names or set(events) <= set(names), (types, answer, events)
    assert counts["named"]
