import trio
import trio.testing

from actgent.actors.deadline_timer import MIN_COMPACT_ENTRIES, Timer


async def test_timers_fire_in_deadline_order(nursery, autojump_clock):
    """One task fires all timers in order, also timers that are set while it sleeps."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)
    for delay in (3, 1, 2):
        timer.call_at(
            trio.current_time() + delay, lambda delay=delay: rung.append((delay, trio.current_time()))
        )
    await trio.sleep(1.5)
    timer.call_at(trio.current_time() + 0.1, lambda: rung.append(("late", trio.current_time())))
    await trio.sleep(10)
    assert [what for what, _ in rung] == [1, "late", 2, 3]
    assert all(abs(at - due) < 1e-6 for (_, at), due in zip(rung, (1, 1.6, 2, 3), strict=True))


async def test_cancelled_timer_never_fires(nursery, autojump_clock):
    """A cancelled timer does not fire; cancelling a fired timer has no effect."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)
    kept = timer.call_at(1, lambda: rung.append("kept"))
    timer.call_at(0.5, lambda: rung.append("cancelled")).cancel()
    await trio.sleep(2)
    kept.cancel()
    assert rung == ["kept"]
    assert len(timer) == 0


async def test_due_timer_fires_immediately(nursery, autojump_clock):
    """A timer with a deadline in the past fires at the next pass of the event loop."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)
    await trio.sleep(5)
    timer.call_at(1, lambda: rung.append(trio.current_time()))
    await trio.testing.wait_all_tasks_blocked()
    assert rung == [5]


async def test_timer_callback_may_set_another_timer(nursery, autojump_clock):
    """A callback may set further timers."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)

    def again() -> None:
        rung.append(trio.current_time())
        if len(rung) < 3:
            timer.call_at(trio.current_time() + 1, again)

    timer.call_at(1, again)
    await trio.sleep(10)
    assert rung == [1, 2, 3]


def test_cancelled_timers_do_not_accumulate():
    """The heap stays about as large as the number of active timers."""
    timer = Timer()
    for _ in range(20 * MIN_COMPACT_ENTRIES):
        timer.call_at(1e9, lambda: None).cancel()
    assert len(timer) == 0
    assert len(timer._heap) <= MIN_COMPACT_ENTRIES


def test_cancelled_timers_at_the_heap_end_are_removed_immediately():
    """Timers with equal timeouts that are cancelled in order leave no entries; the other timers keep their order."""
    timer = Timer()
    kept = timer.call_at(0.5, lambda: None)
    handles = [timer.call_at(1.0 + number, lambda: None) for number in range(50)]
    for handle in handles:
        handle.cancel()
    assert [entry[2] for entry in timer._heap] == [kept]
