"""The arithmetic of budgets in random trees and interleavings."""

import math

import pytest
from hypothesis import given, strategies as st

from actgent.errors import LimitReached
from actgent.journal.record_types import AccountKey
from actgent.limits_and_schedules.budget import MIN_ANSWER_TOKENS, Account, Allowance, Amounts, Budget, gather


def account(name, turn="", **limits):
    return Account(AccountKey(session_id=name, turn=turn, agent="a"), limits)


def price(prompt, answer):
    """A price with a step in it, as providers have them for long prompts."""
    return (prompt * (2 if prompt > 500 else 1) + answer * 4) / 1000


def test_budget_error_has_the_least_cost_of_the_next_call():
    """The error states tokens if tokens are too few, and dollars if dollars are.

    The amount covers the prompt and the shortest answer.
    """
    cases = [
        ({"tokens": 20}, 900, 100 + MIN_ANSWER_TOKENS),
        ({"tokens": 20}, 5, 105),
        ({"cost": 0.01}, 900, price(100, MIN_ANSWER_TOKENS)),
        ({"cost": 0.01}, 5, price(100, 5)),
    ]
    for limits, answer, estimated in cases:
        with pytest.raises(LimitReached) as caught:
            gather(account("t", turn="m", **limits), (), ()).plan(100, answer, price)
        assert (caught.value.field, caught.value.estimated) == (*limits, estimated)


def test_an_ended_call_returns_exactly_its_reservation():
    """Concurrent reservations are separate; the next call gets the whole remainder."""
    budget = gather(account("t", turn="m", tokens=1000), (), ())
    one, other = Amounts(model_calls=1, tokens=300), Amounts(model_calls=1, tokens=200)
    budget.reserve(one)
    budget.reserve(other)
    budget.settle(one, Amounts(model_calls=1, tokens=50), now=0)
    assert budget.plan(100, 650, price) == Allowance(650)
    assert isinstance(budget.plan(100, 651, price), Account)
    budget.settle(other, Amounts(model_calls=1, tokens=10), now=0)
    assert budget.plan(100, 840, price) == Allowance(840)


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "model_calls": st.integers(1, 12),
        "tool_calls": st.integers(1, 12),
        "tokens": st.integers(1, 4000),
        "cost": st.floats(0.001, 8),
    },
)


@st.composite
def trees(draw):
    """Return turns of a family: each draws on its own account, its session's, and those of the turn that asked for it."""
    sessions = [account(f"s{n}", **draw(LIMITS)) for n in range(draw(st.integers(1, 3)))]
    budgets = []
    for number in range(draw(st.integers(1, 6))):
        asker = draw(st.sampled_from(budgets)).accounts if budgets and draw(st.booleans()) else ()
        depth = draw(st.integers(0, len(sessions)))
        own = account(f"t{number}", turn="m", **draw(LIMITS))
        budgets.append(gather(own, sessions[:depth], asker))
    return budgets


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "end", "cancel", "refuse", "tools"]),
        st.integers(0, 99),
        st.integers(0, 900),
        st.integers(1, 900),
        st.floats(0, 1),
    ),
    max_size=60,
)


class Family:
    """Turns that spend concurrently, and independent counts of their spending."""

    def __init__(self, budgets):
        self.budgets = budgets
        self.open = []
        self.calls = dict.fromkeys((each for budget in budgets for each in budget.accounts), 0)

    def call(self, budget, prompt, answer):
        """Start a model call, if there is room."""
        try:
            room = budget.plan(prompt, answer, price)
        except LimitReached:
            return
        if isinstance(room, Account):
            assert room in budget.accounts
            assert room.is_busy
            return
        assert min(MIN_ANSWER_TOKENS, answer) <= room.answer <= answer
        reserved = Amounts(model_calls=1, tokens=prompt + room.answer, cost=price(prompt, room.answer))
        budget.reserve(reserved)
        self.open.append((budget, reserved, prompt, room.answer))

    def end(self, kind, which, share):
        """End one of the calls: answered, cancelled, or refused by the provider."""
        if not self.open:
            return
        budget, reserved, prompt, answer = self.open.pop(which % len(self.open))
        taken = reserved if kind == "cancel" else Amounts(model_calls=1)
        if kind == "end":
            said = int(answer * share)
            taken = Amounts(model_calls=1, tokens=prompt + said, cost=price(prompt, said))
        budget.settle(reserved, taken, now=0.0)
        for each in budget.accounts:
            self.calls[each] += 1

    def call_tools(self, budget, count):
        """Call tools: all or none."""
        before = {each: each.spent.tool_calls for each in self.calls}
        try:
            budget.take_tool_calls(count, of="x", now=0.0)
        except LimitReached:
            assert before == {each: each.spent.tool_calls for each in self.calls}

    def check(self):
        """No account is overdrawn, and each call is counted once by each account."""
        for each, calls in self.calls.items():
            assert each.spent.model_calls == calls
            assert each.reserved.model_calls == sum(each in budget.accounts for budget, *_ in self.open)
            for name, limit in each.limits.items():
                total = getattr(each.spent, name) + getattr(each.reserved, name)
                assert total <= limit * (1 + 1e-9) + 1e-12


@given(trees(), STEPS)
def test_spent_and_reserved_never_exceed_a_limit(budgets, steps):
    """The random calls stay within their estimates, fail or are cancelled at any moment, with tool calls in between."""
    family = Family(budgets)
    for kind, which, prompt, answer, share in steps:
        budget = budgets[which % len(budgets)]
        if kind == "call":
            family.call(budget, prompt, answer)
        elif kind == "tools":
            family.call_tools(budget, which % 5 + 1)
        else:
            family.end(kind, which, share)
        family.check()
    while family.open:
        family.end("refuse", 0, 0)
    assert all(each.reserved == Amounts() for each in family.calls)


@given(
    st.integers(1, 5000), st.lists(st.tuples(st.integers(0, 300), st.integers(16, 300), st.integers(0, 900)))
)
def test_spent_exceeds_a_limit_only_by_estimate_errors(limit, calls):
    """Sequential calls exceed it by the error of one call at most, and no call follows."""
    budget = gather(own := account("s", turn="m", tokens=limit), (), ())
    for prompt, answer, took in calls:
        try:
            room = budget.plan(prompt, answer, price)
        except LimitReached:
            continue
        assert isinstance(room, Allowance)
        assert own.spent.tokens < limit
        reserved = Amounts(model_calls=1, tokens=prompt + room.answer)
        budget.reserve(reserved)
        budget.settle(reserved, Amounts(model_calls=1, tokens=took), now=0.0)
        assert own.spent.tokens <= limit + max(0, took - reserved.tokens)


@given(st.integers(1, 64), st.integers(1, 80))
def test_concurrent_calls_get_exactly_the_limit(limit, askers):
    """All calls reserve before any of them ends. The admitted calls are as many as the limit, or all."""
    shared = account("lead", turn="m", model_calls=limit)
    budgets = [gather(account(f"c{n}", turn="m"), (), (shared,)) for n in range(askers)]
    through = 0
    for budget in budgets:
        if through == limit:
            with pytest.raises(LimitReached) as caught:
                budget.plan(0, 0, price)
            assert caught.value.session_id == "lead"
            continue
        budget.plan(0, 0, price)
        budget.reserve(Amounts(model_calls=1))
        through += 1
    assert through == min(limit, askers)


def test_limits_of_a_turn_or_session_record_each_call_first():
    """With such limits no call begins before the journal has it. The default tree limits do not need that."""
    tree = Account(AccountKey(session_id="t", turn="m", agent="a", tree=True), {"model_calls": 250})
    bounded, free = account("s", tokens=10), account("s")
    turns = [(free,), (free, tree), (free, tree, bounded), (bounded,)]
    assert [Budget(accounts).is_exact for accounts in turns] == [False, False, True, True]


def test_each_account_is_counted_once():
    """An account may be reached on any number of paths.

    Only accounts that no other task counts for have its seconds.
    """
    session, asker, own = account("p"), account("p", turn="m"), account("c", turn="m")
    budget = gather(own, (session,), (asker, session))
    assert budget.accounts == (own, session, asker)
    assert budget.clocked == (own,)
    assert gather(own, (session,), ()).clocked == (own, session)


def test_call_waits_for_reservations_and_fails_for_spent_budget():
    """A call waits only for budget that another reservation may return."""
    budget = gather(own := account("s", turn="m", tokens=1000), (), ())
    held = Amounts(model_calls=1, tokens=1000)
    budget.reserve(held)
    assert budget.plan(100, 300, price) is own
    with pytest.raises(LimitReached):
        budget.plan(990, 300, price)
    budget.settle(held, Amounts(model_calls=1, tokens=100), now=0.0)
    assert budget.plan(100, 300, price) == Allowance(300)
    assert budget.plan(700, 300, price) == Allowance(200, own, "tokens")


@given(st.integers(0, 900), st.integers(1, 900), st.floats(0.001, 5))
def test_answer_length_is_bounded_by_the_remaining_cost(prompt, answer, dollars):
    """The maximum is exact to one token."""
    longest, why = account("s", cost=dollars).longest(prompt, answer, price, at_best=True)
    if longest < 0:
        assert price(prompt, 0) > dollars
    else:
        assert price(prompt, longest) <= dollars
        assert longest == answer or price(prompt, longest + 1) > dollars
    assert (why == "cost") == (longest < answer)


def test_seconds_are_counted_between_ticks():
    """Seconds follow the clock that is passed in, up to the moment when it stops."""
    budget = gather(own := account("s", turn="m", seconds=10), (), ())
    assert budget.start_clock(100.0) == (110.0, own)
    budget.tick(103.0)
    assert own.left == {"seconds": 7}
    budget.stop_clock(104.0)
    budget.tick(200.0)
    assert own.left == {"seconds": 6}
    assert budget.start_clock(300.0) == (306.0, own)
    assert gather(account("x", turn="m"), (), ()).start_clock(0.0) == (math.inf, None)


def test_budget_left_is_the_minimum_over_its_accounts():
    """The result is never below zero."""
    budget = Budget((account("a", tokens=10, tool_calls=3), account("b", tokens=5)))
    assert budget.left == {"tokens": 5, "tool_calls": 3}
    budget.reserve(Amounts(tokens=7))
    assert budget.left == {"tokens": 0, "tool_calls": 3}
