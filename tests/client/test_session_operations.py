"""Past states, copies, comparisons, ratings, files and schedules over HTTP give the results of the runtime."""

import stat
from contextlib import asynccontextmanager

import pytest

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    PermissionDenied,
    ServerUnreachable,
    SessionExists,
    SessionNotFound,
    Suspended,
    UsageError,
    connect,
)
from actgent.agents.session_replay import Difference
from actgent.client import Transport, open_client
from actgent.client.http.http_transport import HTTPTransport
from actgent.journal.record_types import RatingRecord
from actgent.journal.session_export_and_fork import load_sessions
from actgent.runtime.sessions.answer_ratings import read_ratings

from .conftest import Counting, open_served
from .relays import open_relay


@asynccontextmanager
async def open_all(**options):
    """Yield a server whose token may read journals, a client, and a session that has received two messages."""
    settings = {"scopes": ("chat", "approve", "journal"), **options}
    async with open_served(**settings) as served, served.connect() as client:
        session = await client.agent("clerk").create_session("ada", session_id="s1")
        for number in (1, 2):
            text = f"word {number}"
            await client.agent("clerk").run(text, session=session, message_id=f"m{number}")
        await session.wait_idle()
        yield served, client, session


async def test_rebuild_returns_a_past_session():
    """Each past state is the one that the runtime rebuilds. An invalid record number raises before a request is sent."""
    async with open_all() as (served, client, session):
        last = (await session.fetch())["records"]
        for number in (1, last // 2, last):
            past = await client.rebuild("s1", to=number)
            mine = await served.runtime.rebuild("s1", to=number)
            assert (past.step, past.digest, dict(past.state)) == (number, mine.digest, dict(mine.state))
            assert [each.text for each in past.history] == [each.text for each in mine.history]
            assert [each.id for each in past.waiting] == [each.id for each in mine.waiting]
            assert past.usage == mine.usage
        assert (await client.rebuild("s1", agent="clerk")).step == last
        for number in (0, last + 1):
            with pytest.raises(ConfigurationError, match=f"from 1 to {last}"):
                await client.rebuild("s1", to=number)
        with pytest.raises(SessionNotFound):
            await client.rebuild("nothing")


async def test_fork_is_independent_of_the_original():
    """The copy has the history up to its record, and the original is unchanged.

    An existing id is rejected, and the id is optional.
    """
    async with open_all() as (_, client, _session):
        before = await client.rebuild("s1")
        pasts = [await client.rebuild("s1", to=number) for number in range(1, before.step + 1)]
        middle = next(each.step for each in pasts if len(each.history) == 2 and not each.waiting)
        copy = await client.fork("s1", to=middle, new_id="s2")
        assert (copy.session_id, copy.agent, copy.owner) == ("s2", "clerk", "ada")
        opened = await client.agent("clerk").open_session("s2")
        assert (await client.agent("clerk").run("other", session=opened)).text == "you said: other "
        texts = [each.text.strip() for each in await opened.history()]
        assert texts == ["word 1", "you said: word 1", "other", "you said: other"]
        assert (await client.rebuild("s1")).digest == before.digest
        made = await client.fork("s1", agent="clerk")
        assert made.records >= copy.records
        with pytest.raises(SessionExists, match="s2"):
            await client.fork("s1", new_id="s2")
        assert len(await client.sessions()) == 3


async def test_fork_is_written_once_over_cut_connections():
    """Connections break at random positions. Each call writes one copy."""
    async with (
        open_all() as (served, client, _),
        open_relay(served.url, seed=3, cuts=5, longest=900) as relay,
        served.connect(url=relay.url, retry_timeout=120) as cut,
    ):
        made = {(await cut.fork("s1")).session_id for _ in range(6)}
        assert len(made) == 6
        assert {each.session_id for each in await client.sessions()} == {"s1", *made}
        assert relay.left < 5


async def test_compare_replays_with_the_current_code(tmp_path):
    """The same code gives no difference. With another prompt, the first difference has both sides."""
    journal, found = f"sqlite:///{tmp_path}/j.db", []
    for prompt in ("Be kind.", "Be rude."):
        agent = BareAgent("clerk", llm=Counting(), system_prompt=prompt)
        opened = open_served(agent, journal=journal, scopes=("chat", "journal"))
        async with opened as served, served.connect() as client:
            if not found:
                session = await client.agent("clerk").create_session("ada", session_id="s1")
                await client.agent("clerk").run("hello", session=session)
            found.append(await client.compare("s1"))
            assert await client.compare("s1", agent="clerk", to=2) is None
            with pytest.raises(ConfigurationError, match="record number"):
                await client.compare("s1", to=10_000)
    assert found[0] is None
    assert isinstance(found[1], Difference)
    assert found[1].recorded != found[1].replayed


async def test_rating_is_recorded():
    """The latest rating by the token's owner counts. A missing message and an invalid rating are rejected."""
    async with open_all() as (served, client, _):
        await client.rate("s1", "m1", score=0)
        await client.rate("s1", "m1", score=1, comment="well said", expected="word")
        (found,) = await client.ratings("s1", "m1", agent="clerk")
        kept = await read_ratings(served.runtime.journal, (await served.runtime.sessions())[0].key, "m1")
        assert isinstance(found, RatingRecord)
        assert (found.score, found.comment, found.expected, found.by) == (1, "well said", "word", "ada")
        assert abs(found.at - kept["ada"].at) < 0.01
        assert await client.ratings("s1", "m2") == ()
        with pytest.raises(UsageError):
            await client.rate("s1", "nothing", score=1)
        with pytest.raises(ConfigurationError):
            await client.rate("s1", "m1", score=2)


async def test_session_is_exported(tmp_path):
    """The file is the same as the journal's own export, is readable only by its owner, and replaces no file."""
    async with open_all() as (served, client, _session):
        path = tmp_path / "s1.session"
        size = await client.export_session("s1", path)
        (exported,) = load_sessions(path)
        assert (exported.session_id, exported.agent) == ("s1", "clerk")
        assert exported.records == tuple(await served.runtime.journal.load("s1", agent="clerk"))
        assert (size, stat.S_IMODE(path.stat().st_mode)) == (path.stat().st_size, 0o600)
        with pytest.raises(ConfigurationError, match="exists"):
            await client.export_session("s1", path)
        with pytest.raises(ConfigurationError, match="cannot be created"):
            await client.export_session("s1", tmp_path / "nowhere" / "s1")
        with pytest.raises(SessionNotFound):
            await client.export_session("nothing", tmp_path / "nothing")
        assert [each.name for each in tmp_path.iterdir()] == ["s1.session"]


async def test_export_is_complete_over_cut_connections(tmp_path):
    """A cut connection restarts the download. No file remains if the server stays unreachable."""
    async with open_all() as (served, client, session):
        await client.agent("clerk").run("recite 200000", session=session)
        async with (
            open_relay(served.url, seed=5, cuts=6, longest=60_000) as relay,
            served.connect(url=relay.url) as cut,
        ):
            await cut.export_session("s1", tmp_path / "cut")
            assert relay.left < 6
        await client.export_session("s1", tmp_path / "whole")
        assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
        token = served.token
    async with connect("http://127.0.0.1:9", token=token, retry_timeout=0.2) as client:
        with pytest.raises(ServerUnreachable):
            await client.export_session("s1", tmp_path / "gone")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cut", "whole"]


async def test_schedules_of_all_sessions_are_listed():
    """The client returns the schedules of the runtime by due time, page by page."""
    async with open_all() as (served, client, session):
        other = await client.agent("clerk").create_session("ada", session_id="s2")
        await session.schedule("late", after=2000)
        await other.schedule("soon", after=1000, key="k")
        await session.schedule("each day", cron="0 9 * * *", zone="Europe/Berlin")
        found = await client.schedules()
        mine = await served.runtime.schedules()
        assert [(each.agent, each.session_id, each.schedule.id) for each in found] == [
            (each.agent, each.session_id, each.schedule.id) for each in mine
        ]
        assert len(found) == 3
        assert [each.schedule.id for each in await client.schedules(limit=2)] == [
            each.schedule.id for each in found[:2]
        ]


async def test_journal_operations_require_the_scope(tmp_path):
    """A token with only the scope chat cannot read past states and exports, but can fork and rate."""
    async with open_all(scopes=("chat",)) as (_, client, _session):
        for refused in (
            lambda: client.rebuild("s1"),
            lambda: client.compare("s1"),
            lambda: client.export_session("s1", tmp_path / "s1"),
        ):
            with pytest.raises(PermissionDenied):
                await refused()
        assert list(tmp_path.iterdir()) == []
        await client.rate("s1", "m1", score=1)
        assert (await client.fork("s1")).owner == "ada"


async def test_transport_without_downloads_raises(tmp_path):
    """A custom transport without `download` raises ConfigurationError, and no file remains."""

    class Bare(HTTPTransport):
        download = Transport.download

    async with open_client(Bare("http://127.0.0.1:9", token="act_x")) as client:
        with pytest.raises(ConfigurationError, match="Bare does not support downloads"):
            await client.export_session("s1", tmp_path / "s1")
    assert list(tmp_path.iterdir()) == []


async def test_suspended_copy_is_resumed_and_interrupted():
    """Reading a copy does not load it, but returns its open turn.

    So `resume` returns its answer, and `interrupt` stops it.
    """
    async with open_all() as (served, client, session):
        agent = client.agent("clerk")
        with pytest.raises(Suspended):
            await agent.run("deploy mars", session=session)
        for name in ("s2", "s3"):
            await served.runtime.fork("s1", new_id=name)
        copy, stopped = await agent.open_session("s2"), await agent.open_session("s3")
        running = served.runtime.agents.opener("clerk").running
        (approval,) = await copy.approvals()
        assert "s2" not in running.sessions
        assert (await agent.resume({approval.id: Approve()})).text == "done: deployed to mars "
        await stopped.interrupt()
        assert (await stopped.fetch())["turn"] is None
        assert await stopped.approvals() == ()


async def test_sessions_are_annotated_and_selected():
    """The client annotates and selects sessions by id, like the runtime."""
    async with open_all() as (served, client, _):
        await client.annotate("s1", add_tags=["a", "b"], metadata={"k": "v, w"})
        await client.annotate("s1", agent="clerk", remove_tags=["b"])
        await client.agent("clerk").create_session("ada", session_id="s2", tags=["a"])
        (found,) = await client.sessions(tags=["a"], metadata={"k": "v, w"})
        assert (found.session_id, found.tags, dict(found.metadata)) == ("s1", ("a",), {"k": "v, w"})
        assert found.annotations == (await served.runtime.sessions(metadata={"k": "v, w"}))[0].annotations
        assert len(await client.sessions(tags=["a"])) == 2
        with pytest.raises(SessionNotFound):
            await client.annotate("nothing", add_tags=["a"])
