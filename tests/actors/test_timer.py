import trio
import trio.testing

from actgent.actors.timer import MIN_COMPACT_ENTRIES, Timer


async def test_alarms_ring_in_the_order_of_their_deadlines(nursery, autojump_clock):
    """One task rings all alarms, also those set while it sleeps and sooner than all others."""
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


async def test_a_cancelled_alarm_never_rings(nursery, autojump_clock):
    """Cancelling is final, and harmless after the alarm rang."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)
    kept = timer.call_at(1, lambda: rung.append("kept"))
    timer.call_at(0.5, lambda: rung.append("cancelled")).cancel()
    await trio.sleep(2)
    kept.cancel()
    assert rung == ["kept"]
    assert len(timer) == 0


async def test_an_alarm_that_is_due_already_rings_at_once(nursery, autojump_clock):
    """A deadline in the past is no deadline at all."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)
    await trio.sleep(5)
    timer.call_at(1, lambda: rung.append(trio.current_time()))
    await trio.testing.wait_all_tasks_blocked()
    assert rung == [5]


async def test_an_alarm_may_set_the_next(nursery, autojump_clock):
    """What rings may set alarms of its own."""
    timer, rung = Timer(), []
    nursery.start_soon(timer.run)

    def again() -> None:
        rung.append(trio.current_time())
        if len(rung) < 3:
            timer.call_at(trio.current_time() + 1, again)

    timer.call_at(1, again)
    await trio.sleep(10)
    assert rung == [1, 2, 3]


def test_cancelled_alarms_do_not_pile_up():
    """However many calls are answered in time, the heap stays about as large as what is still set."""
    timer = Timer()
    for _ in range(20 * MIN_COMPACT_ENTRIES):
        timer.call_at(1e9, lambda: None).cancel()
    assert len(timer) == 0
    assert len(timer._heap) <= MIN_COMPACT_ENTRIES
