"""What tests of agents share: an ear at every handler, and the shortest way to an agent."""

from collections.abc import Callable
from typing import Any

import pytest

from actgent import Agent, BareAgent, ScriptedLLM, Session


@pytest.fixture
def listen() -> Callable[..., list[Any]]:
    """`listen(session)` gives the growing list of all that its handlers hear, tokens only with `tokens=True`."""

    def attach(session: Session, *, tokens: bool = False) -> list[Any]:
        heard: list[Any] = []
        for register in (
            session.on_conversation,
            session.on_event,
            session.on_tool_result,
            session.on_exception,
            session.on_routing,
        ):
            register(heard.append)
        if tokens:
            session.on_token(heard.append)
        return heard

    return attach


@pytest.fixture
def make() -> Callable[..., tuple[Agent, ScriptedLLM]]:
    """`make(*answers, kind=BareAgent, **options)` gives an agent and the model that it asks."""

    def build(*answers: Any, kind: type[Agent] = BareAgent, **options: Any) -> tuple[Agent, ScriptedLLM]:
        script = answers[0] if len(answers) == 1 and callable(answers[0]) else list(answers)
        llm = ScriptedLLM(script)
        return kind("tutor", llm=llm, **options), llm

    return build
