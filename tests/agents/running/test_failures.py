"""The record of failures in a runtime, for later inspection."""

import pytest
import trio

from actgent import BareAgent, ModelError, ProviderUnavailable, ScriptedLLM, open_runtime
from actgent.events import FAILURES


def broken(_):
    raise ZeroDivisionError("the secret of the program")


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_failures_are_listed(journal):
    """Each failed message has its kind and class.

    The texts are of the framework only, and no event handler is needed.
    """
    async with open_runtime(journal=journal) as runtime:
        scout = await runtime.start(
            BareAgent("scout", llm=ScriptedLLM([ProviderUnavailable("503"), "there"]))
        )
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(broken)))
        with pytest.raises(ProviderUnavailable):
            await scout.run("What is there?")
        assert (await scout.run("And now?")).text == "there"
        with pytest.raises(ModelError):
            await clerk.run("Divide.")
        first, second = runtime.failures
        assert (first.agent, first.kind, first.error, first.error_text) == (
            "scout",
            "model",
            "ProviderUnavailable",
            "503",
        )
        assert (second.agent, second.kind, second.error, second.error_text) == (
            "clerk",
            "model",
            "ModelError",
            "scripted: its client raised ZeroDivisionError",
        )
        assert first.at <= second.at
        assert first.message_id == first.turn != second.turn


async def test_interrupted_turns_are_not_failures():
    """Interrupted turns and the messages dropped with them are not listed."""
    started = trio.Event()

    async def slow(_):
        started.set()
        await trio.sleep_forever()

    async with open_runtime() as runtime:
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(slow)))
        session = await clerk.create_session("ada", "Begin.")
        await started.wait()
        await session.chat("And then.")
        await session.interrupt(drop_queued=True)
        await session.wait_idle()
        assert runtime.failures == ()


async def test_oldest_failures_are_dropped_beyond_the_bound():
    llm = ScriptedLLM([ProviderUnavailable("503")], repeat=True)
    async with open_runtime() as runtime:
        scout = await runtime.start(BareAgent("scout", llm=llm))
        session = await scout.create_session("ada")
        session.on_exception(lambda _: None)
        for number in range(FAILURES + 5):
            await session.chat(f"{number}")
            await session.wait_idle()
        assert len(runtime.failures) == FAILURES


async def test_a_redacting_runtime_records_no_secret_text():
    """Errors are recorded by class alone."""
    async with open_runtime(journal="memory:", redact=lambda _: "…") as runtime:
        scout = await runtime.start(BareAgent("scout", llm=ScriptedLLM([ProviderUnavailable("of ada")])))
        with pytest.raises(ProviderUnavailable):
            await scout.run("What is there?")
        (failure,) = runtime.failures
        assert (failure.error, failure.error_text) == ("ProviderUnavailable", "")
