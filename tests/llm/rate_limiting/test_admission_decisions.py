"""The capacity that a lane computes from its provider's limits, with explicit times."""

import random

import pytest

from actgent.llm.rate_limiting.admission_decisions import AdmissionController
from actgent.llm.rate_limiting.call_queue import Call
from actgent.llm.rate_limiting.token_buckets import Cost
from actgent.messages import Priority


def admissions():
    return AdmissionController(
        buckets=(), window=100, concurrency=1000, period=60, recovery=30, age_step=30, max_pause=120
    )


def send(desk, lane, now, count=1):
    """Admit `count` calls. Return them in sending order."""
    for number in range(count):
        lane.queue.add(
            Call(session=f"s{lane.admitted + number}", priority=Priority.NORMAL, cost=Cost(), arrived=now)
        )
    return [call for _, call in desk.decide(now)]


def answer(desk, lane, call, remaining, now):
    """Give the lane a response with `remaining` of 60 calls a minute and end the call."""
    reset = f"{60 - remaining}s"
    names = {"limit": "60", "remaining": str(remaining), "reset": reset}
    lane.read(call, {f"x-ratelimit-{name}-requests": text for name, text in names.items()}, now)
    desk.end(lane, call)


@pytest.mark.parametrize("seed", range(20))
def test_reordered_calls_do_not_exceed_the_remaining_units(seed):
    """For 40 calls counted and answered in random orders, the lane assumes at most the 20 remaining units."""
    dice, desk = random.Random(seed), admissions()
    lane = desk.state_of("m")
    counted = dice.sample(sent := send(desk, lane, 0, 40), 40)
    for call in dice.sample(sent, 40):
        answer(desk, lane, call, 59 - counted.index(call), now=0)
        assert lane.detected["requests"].fill(0) <= 20
    assert lane.detected["requests"].fill(0) == 20


def test_usage_of_other_processes_reduces_the_limit():
    """Another process uses the same key. The response to the latest call has the remaining units."""
    desk = admissions()
    lane = desk.state_of("m")
    answer(desk, lane, *send(desk, lane, 0), 59, now=1)
    answer(desk, lane, *send(desk, lane, 10), 4, now=10)
    assert lane.detected["requests"].fill(10) == pytest.approx(4)
    answer(desk, lane, *send(desk, lane, 11), 50, now=11)
    assert lane.detected["requests"].fill(11) == pytest.approx(50)


def test_an_older_answer_does_not_update_learnt_limits():
    """A slow response describes an earlier time than the responses that arrived before it."""
    desk = admissions()
    lane = desk.state_of("m")
    (slow,) = send(desk, lane, 0)
    answer(desk, lane, *send(desk, lane, 1), 30, now=2)
    answer(desk, lane, *send(desk, lane, 3), 5, now=4)
    before = lane.detected["requests"].fill(5)
    answer(desk, lane, slow, 59, now=5)
    assert lane.detected["requests"].fill(5) == before
