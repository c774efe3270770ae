"""Fixtures for tests of agents: listeners, agents with scripted models, and journals that crash."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from actgent import LLM, Agent, Anthropic, BareAgent, OpenAI, OpenAIResponses, ScriptedLLM, Session
from actgent.errors import ActgentError
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry


class StepCounter(trio.abc.Instrument):
    """Calls a function at the n-th step of any task from now on."""

    def __init__(self, steps: int, then: Callable[[], object]) -> None:
        self.left = steps
        self.then = then

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.then()


@pytest.fixture
def cancelled_at() -> Callable[..., Any]:
    """Return a function that cancels a call at the n-th step of any task.

    It returns whether the call ended before that. Errors of actgent count as an end; the list `errors` collects them.
    """

    async def run(steps: int, fn: Callable[[], Any], errors: list[Exception] | None = None) -> bool:
        ended = False
        with trio.CancelScope() as scope:
            counter = StepCounter(steps + 1, scope.cancel)
            trio.lowlevel.add_instrument(counter)
            try:
                async with trio.open_nursery() as nursery:

                    async def call() -> None:
                        nonlocal ended
                        try:
                            await fn()
                        except ActgentError as error:
                            (errors if errors is not None else []).append(error)
                        ended = True

                    nursery.start_soon(call)
            finally:
                trio.lowlevel.remove_instrument(counter)
        return ended

    return run


@pytest.fixture
def listen() -> Callable[..., list[Any]]:
    """Return `listen(session)`, which returns the growing list of all deliveries to the session's handlers.

    Tokens are included with `tokens=True`.
    """

    def attach(session: Session, *, tokens: bool = False) -> list[Any]:
        received: list[Any] = []
        for register in (
            session.on_conversation,
            session.on_event,
            session.on_tool_result,
            session.on_exception,
            session.on_routing,
        ):
            register(received.append)
        if tokens:
            session.on_token(received.append)
        return received

    return attach


@pytest.fixture
def make() -> Callable[..., tuple[Agent, ScriptedLLM]]:
    """Return `make(*answers, kind=BareAgent, **options)`, which returns an agent and its scripted model."""

    def build(*answers: Any, kind: type[Agent] = BareAgent, **options: Any) -> tuple[Agent, ScriptedLLM]:
        script = answers[0] if len(answers) == 1 and callable(answers[0]) else list(answers)
        llm = ScriptedLLM(script)
        return kind("tutor", llm=llm, **options), llm

    return build


class MortalJournal(MemoryJournal):
    """A journal whose process dies at its n-th step. That step is stored, and no later one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = float("inf")
        self.died = trio.Event()

    async def commit(self, entry: Entry, *, epoch: int) -> None:
        if not self.died.is_set():
            await super().commit(entry, epoch=epoch)
            self._count()
        if self.died.is_set():
            await trio.sleep_forever()

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        if not self.died.is_set():
            super().enqueue_write(entry, epoch=epoch)
            self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.died.set()

    async def live(self, life: Callable[[MemoryJournal], Any], *, steps: float = float("inf")) -> bool:
        """One life of a process, which ends by itself or at its n-th step; whether it died."""
        self.left, self.died = steps, trio.Event()

        async def run(scope: trio.CancelScope) -> None:
            await life(self)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, nursery.cancel_scope)
            await self.died.wait()
            nursery.cancel_scope.cancel()
        is_dead, self.died = self.died.is_set(), trio.Event()
        return is_dead


@pytest.fixture
def mortal() -> type[MortalJournal]:
    """Return a journal for crashes: `await journal.live(life, steps=n)` runs `life(journal)` until its n-th step."""
    return MortalJournal


def model_client(wire: str, provider: Any) -> LLM:
    """Return the client of a wire format for a provider on loopback."""
    if wire == "anthropic":
        return Anthropic("m", base_url=provider.anthropic_url, api_key="k")
    kind = OpenAI if wire == "openai" else OpenAIResponses
    return kind("m", base_url=provider.openai_url, api_key="k")


def hear(session: Session) -> list[str]:
    """Return the growing list of the texts of a session's replies and the kinds of its failures."""
    log: list[str] = []
    session.on_conversation(lambda reply: log.append(reply.text))
    session.on_exception(lambda failure: log.append(failure.kind))
    return log
