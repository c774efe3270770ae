"""Deadlines of requests: no wait begins that cannot end in time."""

import math

import pytest
import trio

from actgent.errors import ModelTimeout, ProviderUnavailable, RateLimited
from actgent.llm.fallback_model import FallbackModel
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse
from actgent.llm.rate_limiting import RateLimiter
from actgent.llm.retry_policy import Retry
from actgent.llm.scripted_model import ScriptedLLM
from actgent.llm.wrapper_models import RateLimitedModel
from actgent.messages import Text


class Hanging(LLM):
    """A model that never answers, optionally after streaming a text. Its clean-up can raise."""

    name = "hanging"

    def __init__(self, *, shows="", seconds=math.inf, fails=False):
        self.shows, self.seconds, self.fails = shows, seconds, fails
        self.deadlines = []

    async def complete(self, chat, *, on_text=None):
        self.deadlines.append(chat.deadline)
        if self.shows:
            await on_text(self.shows, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hang)
        return ModelResponse(parts=(Text("late"),))

    async def _hang(self):
        try:
            await trio.sleep(self.seconds)
        finally:
            if self.fails:
                raise OSError("the connection is gone")


async def ignore(text, attempt):
    await trio.lowlevel.checkpoint()


async def test_a_pause_that_outlasts_the_deadline_is_not_begun(autojump_clock):
    """A pause beyond the deadline raises at once. A shorter pause is waited for."""
    errors = [RateLimited("later", retry_after=3), RateLimited("later", retry_after=100)]

    async def call(attempt):
        await trio.lowlevel.checkpoint()
        raise errors[attempt]

    started = trio.current_time()
    with pytest.raises(RateLimited):
        await Retry().run(call, deadline=started + 4)
    assert trio.current_time() == started + 3


async def test_a_rate_limiter_rejects_calls_that_would_miss_their_deadline(autojump_clock):
    """A wait that certainly exceeds the deadline fails at once."""
    rate_limiter = RateLimiter(requests_per_minute=1, burst=1.0)
    model = RateLimitedModel(ScriptedLLM(["ok"], repeat=True), rate_limiter)
    await model.complete(ModelRequest())
    started = trio.current_time()
    with pytest.raises(RateLimited, match="leaves no room"):
        await model.complete(ModelRequest(deadline=started + 59))
    assert trio.current_time() == started
    assert (await model.complete(ModelRequest(deadline=started + 61))).text == "ok"


@pytest.mark.parametrize("fails", [False, True])
async def test_models_share_the_remaining_time(autojump_clock, fails):
    """Each model gets an equal share of the remaining time. The last model gets all of the rest."""
    first, second = Hanging(fails=fails), Hanging(fails=fails)
    last = ScriptedLLM(["yes"])
    started = trio.current_time()
    answer = await FallbackModel(first, second, last).complete(ModelRequest(deadline=started + 30))
    assert answer.text == "yes"
    assert trio.current_time() == started + 20
    assert first.deadlines == [started + 10]
    assert second.deadlines == [started + 20]
    assert [chat.deadline for chat in last.chats] == [started + 30]


async def test_unused_time_goes_to_the_next_model():
    """Shares are computed from the time that remains after the failure."""
    second = Hanging(seconds=0)
    started = trio.current_time()
    await FallbackModel(ScriptedLLM([ProviderUnavailable("no")]), second, ScriptedLLM(["no"])).complete(
        ModelRequest(deadline=started + 30)
    )
    assert second.deadlines == [pytest.approx(started + 15, abs=1)]


async def test_a_model_whose_text_streams_keeps_the_time(autojump_clock):
    """A model that has streamed text is not replaced when its share ends."""
    started = trio.current_time()
    models = Hanging(shows="Once", seconds=20), ScriptedLLM(["no"])
    answer = await FallbackModel(*models).complete(ModelRequest(deadline=started + 30), on_text=ignore)
    assert (answer.text, trio.current_time()) == ("late", started + 20)


@pytest.mark.parametrize("deadline", [math.inf, -1.0])
async def test_chain_without_a_deadline_sets_no_timeout(autojump_clock, deadline):
    """Without a deadline, or with a past one, the chain sets no timeout."""
    first = Hanging(seconds=500)
    answer = await FallbackModel(first, ScriptedLLM(["no"])).complete(ModelRequest(deadline=deadline))
    assert answer.text == "late"
    assert first.deadlines == [deadline]


async def test_error_of_a_timeout_share_has_the_seconds(autojump_clock):
    """The notes of the last error contain the share in seconds."""
    with pytest.raises(ProviderUnavailable) as caught:
        await FallbackModel(Hanging(), ScriptedLLM([ProviderUnavailable("no")])).complete(
            ModelRequest(deadline=trio.current_time() + 30)
        )
    assert caught.value.__notes__ == [
        f"before that, {ModelTimeout.__name__}: hanging: no complete answer within its share of the time, 15 s"
    ]


def test_a_deadline_is_not_part_of_the_request():
    """Requests that differ only in their deadline are equal."""
    assert ModelRequest(deadline=3) == ModelRequest()
