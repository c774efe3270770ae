"""Quotas of one owner's sessions per day and month."""

import datetime as dt
import random

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    LimitReached,
    Limits,
    Quotas,
    Retention,
    ScriptedLLM,
    ToolCall,
    Usage,
    open_runtime,
)
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text

TWO = Quotas(day=Limits(model_calls=2))
DAY = 86_400.0


@pytest.fixture(params=["none", "memory", "sqlite"])
def journal(request, tmp_path):
    """Without a journal, and with each kind that needs no server."""
    return {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agents.db"}[request.param]


def clerk(name="clerk", **options):
    return BareAgent(name, llm=ScriptedLLM(["Noted."], repeat=True), **options)


async def ask(agent, owner, session_id):
    """Send a message in a session of an owner."""
    return str(await agent.run("Hello", session=await agent.ensure_session(owner, session_id)))


async def test_all_sessions_of_an_owner_share_one_quota(journal):
    """The sessions may be of any agent. Other owners have separate quotas. The error names owner, period and bound."""
    async with open_runtime(journal=journal, quotas=TWO) as runtime:
        one, two = await runtime.start(clerk("one")), await runtime.start(clerk("two"))
        assert await ask(one, "ada", "a") == await ask(two, "ada", "b") == "Noted."
        with pytest.raises(
            LimitReached, match=r"the owner 'ada' reached the quota of 2 model calls a day"
        ) as caught:
            await ask(one, "ada", "c")
        assert (caught.value.owner, caught.value.period, caught.value.field) == ("ada", "day", "model_calls")
        assert await ask(one, "bob", "d") == "Noted."
        assert {each.agent for each in await runtime.sessions()} == {"one", "two"}


LONG = "".join(random.Random(7).choices("abcdefghij", k=20_000))


@pytest.mark.parametrize(
    "owner",
    ["a\tb", "\n" + "0" * 64, "a\u2028b", LONG, "ada"],
    ids=["tab", "digest", "line end", "long", "usual"],
)
@pytest.mark.parametrize("kind", ["none", "sqlite", "postgres"])
async def test_quota_works_for_owners_of_any_name(request, tmp_path, kind, owner):
    """Names do not collide, over restarts as well."""
    url = {"none": None, "sqlite": f"sqlite:///{tmp_path}/agents.db"}.get(kind)
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else url
    with trio.fail_after(20):
        async with open_runtime(journal=url, quotas=TWO) as runtime:
            agent = await runtime.start(clerk())
            assert await ask(agent, owner, "a") == "Noted."
            assert await ask(agent, owner + "2", "b") == "Noted."
            if url is None:
                assert await ask(agent, owner, "a") == "Noted."
                with pytest.raises(LimitReached):
                    await ask(agent, owner, "a")
        async with open_runtime(journal=url, quotas=TWO) as runtime:
            agent = await runtime.start(clerk())
            assert await ask(agent, owner, "a") == "Noted."
            if url is not None:
                with pytest.raises(LimitReached) as caught:
                    await ask(agent, owner, "a")
                assert caught.value.owner == owner
            assert await ask(agent, owner + "2", "b") == "Noted."
            assert await ask(agent, "bob", "c") == "Noted."


async def test_concurrent_turns_do_not_exceed_the_quota(journal):
    """The turns that the quota rejects call no model."""
    going, go, calls = trio.Event(), trio.Event(), []

    async def answer(chat):
        calls.append(chat)
        going.set()
        await go.wait()
        return "Noted."

    ends = []
    async with open_runtime(journal=journal, quotas=TWO) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer, repeat=True)))

        async def turn(number):
            try:
                ends.append(await ask(agent, "ada", f"s{number}"))
            except LimitReached as error:
                ends.append(error.owner)
                if ends.count("ada") == 4:
                    go.set()

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(turn, number)
    assert sorted(ends) == ["Noted.", "Noted.", "ada", "ada", "ada", "ada"]
    assert len(calls) == 2


async def test_a_quota_survives_a_restart(tmp_path):
    """Spending counts with any limits of the next start, and erasing sessions does not reduce it."""
    url = f"sqlite:///{tmp_path}/agents.db"
    for number in range(2):
        async with open_runtime(journal=url, quotas=TWO) as runtime:
            assert await ask(await runtime.start(clerk()), "ada", f"s{number}") == "Noted."
    async with open_runtime(journal=url, quotas=TWO, retention=Retention(idle=0.001)) as runtime:
        agent = await runtime.start(clerk())
        with pytest.raises(LimitReached, match="used: 2 model calls"):
            await ask(agent, "ada", "s2")
    async with open_runtime(journal=url, quotas=Quotas(day=Limits(model_calls=3))) as runtime:
        agent = await runtime.start(clerk())
        assert await ask(agent, "ada", "s3") == "Noted."
        with pytest.raises(LimitReached):
            await ask(agent, "ada", "s4")


@pytest.mark.parametrize("steps", range(1, 10))
async def test_call_of_a_dying_process_is_counted(mortal, steps):
    """At least the actual calls and at most one more are counted, wherever the process dies."""
    calls = []

    def answer(chat):
        calls.append(chat)
        return "Noted."

    async def life(journal):
        async with open_runtime(journal=journal, quotas=Quotas(day=Limits(model_calls=3))) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer, repeat=True)))
            for number in range(6):
                try:
                    await ask(agent, "ada", f"s{number}")
                except LimitReached:
                    return

    async with mortal().running() as journal:
        await journal.live(life, steps=steps)
        await journal.live(life)
    assert 2 <= len(calls) <= 3


async def test_a_quota_resets_after_its_period(autojump_clock, journal):
    """The daily quota resets on the next day; the monthly quota continues."""
    quotas = Quotas(day=Limits(model_calls=2), month=Limits(model_calls=1000))
    async with open_runtime(journal=journal, quotas=quotas) as runtime:
        agent = await runtime.start(clerk())
        for day in range(2):
            for number in range(2):
                await ask(agent, "ada", f"{day}-{number}")
            with pytest.raises(LimitReached, match="a day"):
                await ask(agent, "ada", "x")
            await trio.sleep(DAY)


async def test_quota_charges_delegated_turns_once(journal):
    """Another agent's turn for a session of the owner counts exactly once."""
    expert = clerk("expert")
    desk = BareAgent(
        "desk", llm=ScriptedLLM([[ToolCall("expert", {"task": "x"})], "Done."]), tools=[expert.as_tool()]
    )
    async with open_runtime(journal=journal, quotas=Quotas(month=Limits(model_calls=3))) as runtime:
        await runtime.start(desk)
        assert await ask(desk, "ada", "a") == "Done."
        with pytest.raises(LimitReached, match="used: 3 model calls"):
            await ask(desk, "ada", "b")


async def test_tokens_and_cost_are_counted(journal):
    """The usage is that of the provider, and the error states it."""
    answer = ModelResponse(parts=(Text("Noted."),), usage=Usage(input_tokens=5_000, output_tokens=100))
    async with open_runtime(journal=journal, quotas=Quotas(day=Limits(tokens=10_000))) as runtime:
        agent = await runtime.start(
            BareAgent("clerk", llm=ScriptedLLM([answer], repeat=True), max_tokens=100)
        )
        for session_id in "ab":  # the estimate of the second still had room
            await ask(agent, "ada", session_id)
        with pytest.raises(
            LimitReached, match=r"the owner 'ada' .* 10,000 tokens a day .used: .*10,200 tokens"
        ):
            await ask(agent, "ada", "c")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "has no limits"),
        ({"day": Limits()}, "takes Limits of"),
        ({"day": Limits(seconds=5, tokens=5)}, "no seconds"),
        ({"month": 5}, "must be Limits"),
        ({"day": Limits(tokens=5), "zone": "Mars/Olympus"}, "Mars"),
    ],
)
def test_invalid_quota_is_rejected(wrong, says):
    """The error names the problem."""
    with pytest.raises(ConfigurationError, match=says):
        Quotas(**wrong)


def test_periods_follow_the_zone():
    """A day has 23 to 25 hours where clocks change, and a month ends where the next begins."""
    quotas = Quotas(day=Limits(tokens=1), zone="Europe/Berlin")
    now = dt.datetime(2026, 3, 28, 23, 30, tzinfo=dt.UTC).timestamp()
    day, month = quotas.period("day", now), quotas.period("month", now)
    assert (day.name, month.name) == ("2026-03-29", "2026-03")
    assert day.ends_at == dt.datetime(2026, 3, 29, 22, tzinfo=dt.UTC).timestamp()
    assert month.ends_at == dt.datetime(2026, 3, 31, 22, tzinfo=dt.UTC).timestamp()
