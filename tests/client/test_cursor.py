"""The cursor of a client's session. It advances without handlers, and begins where the session was opened."""

import trio


async def run(clerk, session, *texts):
    for text in texts:
        await clerk.run(text, session=session)


async def test_cursor_is_kept_after_the_last_handler_is_removed(clerk):
    """The next handler receives the events since then, once."""
    session, first, second = await clerk.create_session("ada"), [], []
    with trio.fail_after(60):
        with session.listening(on_conversation=first.append):
            await run(clerk, session, "one")
            await session.wait_idle()
        cursor = session.cursor
        assert [each.text for each in first] == ["you said: one "]
        await run(clerk, session, "two")
        assert session.cursor == cursor > 0
        session.on_conversation(second.append)
        await run(clerk, session, "three")
        await session.wait_idle()
    assert [each.text for each in second] == ["you said: two ", "you said: three "]
    assert len(first) == 1
    assert session.cursor > cursor


async def test_opened_session_receives_events_after_the_call(clerk):
    """Handlers also receive events from before the first handler was attached, but none from before the call."""
    made, received = await clerk.create_session("ada"), []
    with trio.fail_after(60):
        await run(clerk, made, "before")
        session = await clerk.open_session(made.id)
        assert session.cursor > 0
        await run(clerk, made, "between")
        session.on_conversation(received.append)
        await run(clerk, made, "later")
        await session.wait_idle()
    assert [each.text for each in received] == ["you said: between ", "you said: later "]


async def test_cursor_of_one_client_works_in_another(served):
    """`open_session(after=cursor)` delivers each answer that the first client did not receive, once."""
    received = []
    with trio.fail_after(60):
        async with served.connect() as client:
            clerk = client.agent("clerk")
            session = await clerk.create_session("ada")
            session.on_conversation(print)
            await run(clerk, session, "one")
            await session.wait_idle()
            cursor, session_id = session.cursor, session.id
        async with served.connect() as client:
            clerk = client.agent("clerk")
            again = await clerk.open_session(session_id, after=cursor)
            assert again.cursor == cursor
            await run(clerk, again, "two")
            again.on_conversation(received.append)
            await again.wait_idle()
    assert [each.text for each in received] == ["you said: two "]
