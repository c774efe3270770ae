"""`AgentRegistry`: definitions of agents that are saved by name."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actgent import (
    AgentBuilder,
    BareAgent,
    ConfigurationError,
    Instruction,
    InvalidFolder,
    ScriptedLLM,
    SimpleAgent,
    tool,
)
from actgent.definitions.agent_registry import AgentRegistry
from actgent.protocols.protocol_interface import Profile


@tool
def book(city: str) -> str:
    """Book a flight."""
    return f"booked {city}"


INSTRUCTIONS = [
    Instruction("greeting", 'Somebody says "hello": {not} a template.'),
    Instruction("flight", "Somebody wants to fly.", {"city": "<where>"}, "book"),
]
CLERK = Profile(
    name="clerk",
    role='a clerk: "quick" & kind\nwith two lines',
    goal="sell flights",
    capabilities="booking",
    instructions=INSTRUCTIONS,
    body="---\nBe brief.",
)


async def test_saved_definition_is_loaded_and_runs(tmp_path):
    """The definition has everything except code. A builder creates the agent again, with the same instructions."""
    registry = AgentRegistry(tmp_path / "agents")
    agent = SimpleAgent(
        "clerk",
        llm=ScriptedLLM([]),
        role=CLERK.role,
        goal=CLERK.goal,
        capabilities=CLERK.capabilities,
        body=CLERK.body,
        instructions=INSTRUCTIONS,
        tools=[book],
    )
    registry.save(agent.profile, protocol="simple")
    again = AgentRegistry(tmp_path / "agents")
    read = again.load("clerk", tools=["book"])
    assert (read.name, read.role, read.goal, read.capabilities) == (
        "clerk",
        CLERK.role,
        "sell flights",
        "booking",
    )
    assert (read.body, read.protocol) == (CLERK.body, "simple")
    assert [(each.name, each.description, each.tool) for each in read.instructions] == [
        (each.name, each.description, each.tool) for each in INSTRUCTIONS
    ]
    llm = ScriptedLLM(
        [
            '{"messageType": "flight", "content": {"city": "Rome"}}',
            '{"messageType": "greeting", "content": "Done."}',
        ]
    )
    built = AgentBuilder.from_folder(again.path_of("clerk"), tools=[book]).llm(llm).build()
    async with built:
        assert (await built.run("Rome, please")).text == "Done."
    assert "booked Rome" in repr(llm.chats[1].messages)


def test_names_are_listed_found_and_removed(tmp_path):
    """Names are sorted and found by words of role, goal and capabilities. The error for an unknown name suggests the nearest."""
    registry = AgentRegistry(tmp_path)
    registry.save(CLERK)
    registry.save(Profile(name="tutor", role="a maths tutor", goal="teach sums"))
    assert registry.names() == ("clerk", "tutor")
    assert registry.find("Who can teach maths?") == ("tutor",)
    assert registry.find("flights") == ("clerk",)
    assert registry.find("cooking") == ()
    with pytest.raises(ConfigurationError, match="tutor"):
        registry.load("tuter")
    for name in ("../tutor", ".", "", "/etc"):
        with pytest.raises(ConfigurationError, match="no agent"):
            registry.path_of(name)
    registry.remove("tutor")
    assert registry.names() == ("clerk",)
    with pytest.raises(ConfigurationError, match="no agent"):
        registry.remove("tutor")


def test_second_save_of_a_name_needs_replace(tmp_path):
    """A second save of a name is rejected or replaces the whole definition. An invalid definition leaves the old one."""
    registry = AgentRegistry(tmp_path)
    registry.save(CLERK)
    with pytest.raises(ConfigurationError, match="already"):
        registry.save(Profile(name="clerk"))
    with pytest.raises(InvalidFolder, match="protocol"):
        registry.save(Profile(name="clerk"), protocol="nonsense", replace=True)
    assert registry.load("clerk", tools=["book"]).goal == "sell flights"
    assert registry.save(Profile(name="clerk", goal="rest"), replace=True).goal == "rest"
    assert (registry.load("clerk").goal, registry.load("clerk").instructions) == ("rest", ())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["clerk"]
    with pytest.raises(ConfigurationError, match="lower-case"):
        registry.save(Profile(name="No Name"))


def test_definition_without_instructions_is_saved(tmp_path):
    """A definition without instructions is saved, with its model by name."""
    registry = AgentRegistry(tmp_path)
    registry.save(BareAgent("plain", llm=ScriptedLLM([])).profile, llm="openai:gpt-5.2")
    assert registry.load("plain").llm == {"model": "openai:gpt-5.2"}


@pytest.mark.parametrize("call", ["fsync", "mkdir", "replace"])
def test_replacement_that_stops_leaves_the_old_or_the_new_definition(tmp_path, monkeypatch, call):
    """If a disk operation fails, the definition is the old or the new one, and the next replacement succeeds."""
    registry = AgentRegistry(tmp_path)
    old = Profile(
        name="clerk", goal="old", instructions=[Instruction("one", "Somebody asks."), INSTRUCTIONS[0]]
    )
    new = Profile(name="clerk", goal="new", instructions=[Instruction("two", "Somebody answers.")])
    registry.save(old)
    place, real = (os, os.fsync) if call == "fsync" else (Path, getattr(Path, call))
    seen, stop, count = set(), 0, 0

    def fail(*given, **named):
        nonlocal count
        count += 1
        if count == stop:
            raise OSError(28, "no space left on device")
        return real(*given, **named)

    while True:
        stop, count = stop + 1, 0

        with monkeypatch.context() as patched:
            patched.setattr(place, call, fail)
            try:
                registry.save(new, replace=True)
            except ConfigurationError:
                pass
            else:
                break
        read = registry.load("clerk")
        assert (read.goal, [each.name for each in read.instructions]) in (
            ("old", ["one", "greeting"]),
            ("new", ["two"]),
        )
        seen.add(read.goal)
        assert registry.save(old, replace=True).goal == "old"
    assert stop > 1
    assert "old" in seen
    assert registry.load("clerk").goal == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["clerk"]


def test_readers_and_two_writers_at_once_see_whole_definitions(tmp_path):
    """Concurrent readers load only complete definitions."""
    registry = AgentRegistry(tmp_path)
    texts = {name: f"Somebody says {name}." for name in ("a", "b")}
    profiles = [
        Profile(name="clerk", goal=name, instructions=[Instruction(f"{name}{n}", text) for n in range(3)])
        for name, text in texts.items()
    ]
    registry.save(profiles[0])
    with ThreadPoolExecutor(3) as pool:
        writing = [
            pool.submit(lambda each=each: [registry.save(each, replace=True) for _ in range(8)])
            for each in profiles
        ]
        while not all(each.done() for each in writing):
            read = registry.load("clerk")
            assert [(each.name, each.description) for each in read.instructions] == [
                (f"{read.goal}{n}", texts[read.goal]) for n in range(3)
            ]
        for each in writing:
            assert len(each.result()) == 8
    assert len(list((tmp_path / "clerk").iterdir())) <= 3
