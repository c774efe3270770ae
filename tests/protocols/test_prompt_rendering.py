"""Prompts: templates over a profile. Data is never a template, and each rendering has the same bytes."""

import subprocess
import sys

import attrs
import pytest

from actgent.errors import ConfigurationError
from actgent.messages import ToolSpec
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_rendering import WHO, PromptManager, render
from actgent.protocols.protocol_interface import ClassificationType, Instruction, Profile
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple

from .conftest import TYPES

PROFILE = Profile(
    name="tutor",
    role="maths tutor",
    goal="help with sums",
    capabilities="arithmetic",
    types=TYPES,
    instructions=[Instruction("greeting")],
    tools=[ToolSpec("add", "adds", {})],
    body="Be <kind> & brief.",
)


@pytest.mark.parametrize(
    "protocol", [Bare(), Simple(), ReAct(), Router()], ids=lambda protocol: protocol.name
)
def test_every_protocol_renders_its_prompt(protocol):
    """The prompt contains the profile unescaped. Two renderings have the same bytes."""
    prompt = PromptManager(protocol, PROFILE).system_prompt()
    for part in ("tutor", "maths tutor", "help with sums", "arithmetic", "Be <kind> & brief."):
        assert part in prompt
    assert prompt == PromptManager(type(protocol)(), attrs.evolve(PROFILE)).system_prompt()
    assert "\n\n\n" not in prompt


@pytest.mark.parametrize(
    "protocol", [Bare(), Simple(), ReAct(), Router()], ids=lambda protocol: protocol.name
)
def test_an_empty_profile_renders(protocol):
    """A profile needs only a name."""
    assert PromptManager(protocol, Profile()).system_prompt().startswith("You are agent.")


@pytest.mark.parametrize("protocol", [Simple(), ReAct(), Router()], ids=lambda protocol: protocol.name)
def test_json_prompts_contain_types_and_schemas(protocol):
    """Each classification type has its description and its schema as JSON."""
    prompt = PromptManager(protocol, PROFILE).system_prompt()
    assert "- creation: create an agent" in prompt
    assert '{"name": "<its name>", "goal": "<its goal>", "caps": ["<one capability>"]}' in prompt


def test_data_is_never_a_template():
    """Braces in a profile are rendered as text."""
    evil = "{{ 7 * 7 }}{% for x in y %}"
    prompt = PromptManager(
        Simple(), Profile(role=evil, types=[ClassificationType(name=evil)])
    ).system_prompt()
    assert prompt.count(evil) == 2


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("a\nb {{ profile.nothing }}", 2),
        ("a\n\n{{ unknown }}", 3),
        ("{% if %}", 1),
        ("a\n{% for x in profile.types %}", 2),
        ("{{ lipsum() }}", 1),
        ("{{ range(10) }}", 1),
        ("a\n{{ profile.__class__.__mro__ }}", 2),
        ("a\nb\n{{ 1 / 0 }}", 3),
    ],
)
def test_broken_templates_raise_with_their_line(template, line):
    """A broken template is a ConfigurationError that names the line. The sandbox prevents access from the template."""
    with pytest.raises(ConfigurationError, match=f"template 'mine', line {line}: "):
        render(template, PROFILE, name="mine")


@pytest.mark.parametrize("role", ["", "maths tutor", "a tutor!", "You are a tutor", "YOU ARE x.", " padded "])
@pytest.mark.parametrize("goal", ["", "win", "Your goals: many.\n"])
@pytest.mark.parametrize("capabilities", ["", "sums"])
@pytest.mark.parametrize("body", ["", "a\n\n{{ b }}\n"])
def test_agent_description_equals_its_template(role, goal, capabilities, body):
    """The template `WHO` is rendered without jinja2, to the same bytes as with jinja2."""
    profile = Profile(name="tutor", role=role, goal=goal, capabilities=capabilities, body=body)
    by_jinja = render(f"{WHO}\n", profile, name="mine")
    assert render(WHO, profile, name="mine") == by_jinja


def test_jinja_is_imported_with_the_first_template():
    """Reading answers and the prompt of an agent without a template do not import the template engine."""
    code = (
        "import sys, actgent, actgent.protocols.react_protocol, actgent.structured_output.output_type; "
        "agent = actgent.BareAgent('a', role='b', llm=actgent.ScriptedLLM(['c'])); assert agent.run_sync('d').text == 'c'; "
        "assert 'jinja2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
