"""`Memories`: what owners are known by, beyond the end of a conversation."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import attrs

from actgent.errors import ConfigurationError
from actgent.memory.lasting import LastingMemories
from actgent.messages import Sender
from actgent.support.logs import logger_of

from .access import GROUP, StoreAccess
from .embedding import Embedder, EmbedTexts
from .opening import open_store
from .operations import (
    Associate,
    Embed,
    Erase,
    ForgetThese,
    Operation,
    Put,
    Replace,
    Search,
    SetMark,
    Together,
)
from .scope import Scope, check_owner
from .store import Found, MemoryStore
from .unit import (
    EVERYTHING,
    Association,
    MemoryFilter,
    MemoryUnit,
    Recalled,
    check_metadata,
    checked_id,
    checked_importance,
    checked_name,
    checked_text,
    checked_time,
    clean,
)
from .words import searched_words

T = TypeVar("T")

EMBEDDED = 100
"""Texts that `reindex` has embedded at a time."""

_log = logger_of(__name__)
_CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "text": checked_text,
    "kind": lambda kind: clean(checked_name("a memory's kind", kind)),
    "importance": checked_importance,
    "is_kept": bool,
    "is_shared": bool,
    "agent": clean,
    "session_id": partial(checked_id, "session_id"),
    "message_id": clean,
    "valid_from": lambda at: checked_time("valid_from", at),
    "valid_until": lambda at: checked_time("valid_until", at),
}
"""What a caller may say of a memory, and how it is checked; and there is `metadata`."""


class Memories(LastingMemories):
    """What is remembered of owners, in a database, for agents (`Agent(memories=...)`) and programs.

    It is open in an `async with` block, and while an agent that has it runs. All times are Unix times in seconds.

    A memory belongs to an owner, and each call is made for one: it sees that owner's memories and those that are shared
    with everybody, and changes that owner's alone. A call that returns has written durably; one that is cancelled has
    written all or nothing of what it was to do, and a repetition under the same `key` does nothing a second time.

    Args:
        url: `sqlite:///FILE`, a file of its own beside a journal; `postgres://HOST/DATABASE`, in whose schema
            `actgent_memories` (`?schema=`) it lives, by the extra `postgres`; `memory:` ends with the block.
        embed: A function, sync or async, from texts to vectors, one each; by them what is meant is found, too. In SQLite it
            needs the extra `vector`, in PostgreSQL the extension pgvector.
        capacity: How many memories an owner may have; None: any number. The one that is worth the least goes for a new
            one; never one that is kept.
        half_life: Days without use in which the worth of a memory halves; None: it does not fade.
        now: What time it is.

    Raises:
        ConfigurationError: an argument is wrong, or an extra is missing.
    """

    def __init__(
        self,
        url: str = "memory:",
        *,
        embed: EmbedTexts | None = None,
        capacity: int | None = None,
        half_life: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        _check_options(embed, capacity, half_life)
        self.url = url
        self._embedder = Embedder(embed, url)
        self._now = now
        opening = open_store(url, has_vectors=embed is not None, capacity=capacity, half_life=half_life)
        self._store = StoreAccess(repr(self), opening, is_alone=url.startswith("memory:"))

    def __repr__(self) -> str:
        return f"<Memories {self.url.rsplit('@', maxsplit=1)[-1]!r}>"

    # --- its life ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._store.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.release()  # noqa: ASYNC102 - it shields what it writes, with a time limit

    # --- remembering ---------------------------------------------------------------------

    async def remember(
        self,
        text: str,
        *,
        owner: Sender | str,
        kind: str = "fact",
        importance: float = 0.5,
        is_kept: bool = False,
        is_shared: bool = False,
        valid_from: float | None = None,
        valid_until: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        agent: str = "",
        session_id: str = "",
        message_id: str = "",
        key: str = "",
        is_unique: bool = False,
    ) -> MemoryUnit:
        """Remember something; it is durable on return. The fields are those of `MemoryUnit`.

        Under the same `key` an owner remembers once: a repetition returns what is there, and remembers nothing anew that
        was forgotten since. With `is_unique` a memory of the same kind and words is returned in place of a second one.

        Raises:
            ConfigurationError: one of these is wrong, the owner's name is longer than 1,000 bytes of JSON, or `key`, `session_id` or a
                name of the metadata longer than 1,600 in UTF-8.
            MemoriesFull: the owner has as many as may be, and all of them are kept.
            MemoriesFailed: it could not be written.
        """
        fields = {
            "text": text,
            "kind": kind,
            "importance": importance,
            "is_kept": is_kept,
            "is_shared": is_shared,
            "valid_from": valid_from,
            "valid_until": valid_until,
            "metadata": metadata or {},
            "agent": agent,
            "session_id": session_id,
            "message_id": message_id,
        }
        put = self._put(_sender(owner), fields, key=key, is_unique=is_unique)
        vectors = await self._embedder.vectors([put.unit.text])
        return cast(MemoryUnit, await self._store.write(attrs.evolve(put, vector=vectors[0])))

    def _put(self, owner: Sender, fields: Mapping[str, Any], *, key: str, is_unique: bool = False) -> Put:
        at = self._now()
        check_owner(owner)
        unit = MemoryUnit(id=_new_id(), owner=owner, created_at=at, last_used=at, **_checked(fields))
        return Put(unit=unit, key=checked_id("key", key), is_unique=is_unique)

    async def update(
        self, memory_id: str, text: str | None = None, *, owner: Sender | str, key: str = "", **changes: Any
    ) -> MemoryUnit:
        """Put a memory in the place of another one, which stays as history; what is not given stays as it was.

        `changes` are arguments of `remember`.

        Raises:
            MemoryNotFound: the owner has none of this id.
            MemoryReplaced: it was replaced before; the error names the newer one.
            ConfigurationError, MemoriesFailed: see `remember`.
        """
        given = changes if text is None else {**changes, "text": text}
        todo = self._replacement(_sender(owner), memory_id, given, key=key)
        fresh = todo.changes.get("text")
        if self._embedder.embed is not None:
            if fresh is None:
                fresh = (await self.get(memory_id, owner=owner)).text
            todo = attrs.evolve(todo, vector=(await self._embedder.vectors([fresh]))[0])
        return cast(MemoryUnit, await self._store.write(todo))

    def _replacement(self, owner: Sender, memory_id: str, changes: Mapping[str, Any], *, key: str) -> Replace:
        scope = Scope(owner, with_shared=False)
        return Replace(
            scope=scope,
            old=clean(str(memory_id)),
            new_id=_new_id(),
            changes=_checked(changes),
            now=self._now(),
            key=checked_id("key", key),
        )

    async def forget(self, *ids: str, owner: Sender | str, wanted: MemoryFilter | None = None) -> int:
        """Remove memories with their history, by ids or by a filter; returns how many there were. Kept ones go, too.

        An id that is not there, or another owner's, counts nothing.

        Raises:
            ConfigurationError: neither ids nor a filter that says something are given; `erase` removes all.
            MemoriesFailed: it could not be written.
        """
        if bool(ids) is (wanted is not None) or (wanted is not None and wanted.is_empty):
            raise ConfigurationError(
                "forget() takes ids, or wanted=MemoryFilter(...) with something in it; erase(owner) removes all"
            )
        scope = Scope(_sender(owner), with_shared=False)
        todo = ForgetThese(scope=scope, ids=[clean(str(each)) for each in ids], wanted=wanted or EVERYTHING)
        return cast(int, await self._store.write(todo))

    async def erase(self, owner: Sender | str) -> int:
        """Remove everything of an owner: memories, history, words, vectors, links, and what was noted of calls."""
        return cast(int, await self._store.write(Erase(owner=_sender(owner))))

    async def associate(
        self, memory_id: str, other_id: str, relation: str = "related_to", *, owner: Sender | str
    ) -> bool:
        """Link two memories of an owner; `associations` of either tells of it. False: they were linked so before.

        Raises:
            MemoryNotFound: the owner has not both.
        """
        return await self._link(memory_id, other_id, relation, owner, is_removed=False)

    async def dissociate(
        self, memory_id: str, other_id: str, relation: str = "related_to", *, owner: Sender | str
    ) -> bool:
        """Take a link away; False where there was none."""
        return await self._link(memory_id, other_id, relation, owner, is_removed=True)

    async def _link(self, a: str, b: str, relation: str, owner: Sender | str, *, is_removed: bool) -> bool:
        scope = Scope(_sender(owner), with_shared=False)
        word = clean(checked_name("a relation", relation))
        todo = Associate(scope=scope, source=clean(a), target=clean(b), relation=word, is_removed=is_removed)
        return cast(bool, await self._store.write(todo))

    # --- recalling -----------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        owner: Sender | str,
        limit: int = 10,
        wanted: MemoryFilter = EVERYTHING,
        at: float | None = None,
        with_shared: bool = True,
    ) -> list[Recalled]:
        """Find what is remembered by words or meaning, best first; without a word in `query` what is worth the most.

        Only what is valid `at` that time, by default now, and was not replaced. The words of a query are words: none of
        them is an operator. The scores by words and by vectors are added. A part of a score goes to the memories before
        and after it in the same session. Importance and age decide between equal scores; equal texts are returned once.

        Raises:
            ConfigurationError: the limit is below 1, or the vectors are of another length than those that are there.
            MemoriesFailed: the memories cannot be read.
        """
        if limit < 1:
            raise ConfigurationError(f"limit= is at least 1, not {limit!r}")
        scope = Scope(_sender(owner), with_shared=with_shared)
        words = searched_words(clean(query))
        vector = (await self._embedder.vectors([clean(query)]))[0] if words else None
        search = Search(
            scope=scope,
            words=words,
            vector=vector,
            wanted=wanted,
            at=self._now() if at is None else at,
            limit=limit,
        )
        best = await self._store.read(MemoryStore.search, search)
        await self._store.note_uses([number for number, _ in best], at=self._now())
        for _ in scope.check(recalled.memory for _, recalled in best):
            pass
        return [recalled for _, recalled in best]

    async def get(self, memory_id: str, *, owner: Sender | str) -> MemoryUnit:
        """One memory, of now or of history.

        Raises:
            MemoryNotFound: this owner has none of this id, and none of it is shared.
        """
        scope = Scope(_sender(owner))
        return next(scope.check([await self._store.read(MemoryStore.get, scope, clean(memory_id))]))

    async def history(self, memory_id: str, *, owner: Sender | str) -> list[MemoryUnit]:
        """A memory with those that it replaced and those that replaced it, the oldest first.

        Raises:
            MemoryNotFound: see `get`.
        """
        scope = Scope(_sender(owner))
        return list(scope.check(await self._store.read(MemoryStore.history, scope, clean(memory_id))))

    async def associations(self, memory_id: str, *, owner: Sender | str) -> list[Association]:
        """The links of a memory to others that count now, from either end.

        Raises:
            MemoryNotFound: see `get`.
        """
        return await self._store.read(MemoryStore.associations, Scope(_sender(owner)), clean(memory_id))

    async def page(
        self,
        *,
        owner: Sender | str,
        wanted: MemoryFilter = EVERYTHING,
        after: MemoryUnit | None = None,
        limit: int = 100,
        with_shared: bool = False,
    ) -> list[MemoryUnit]:
        """At most `limit` memories that count now, oldest first, behind `after`, the last of the page before."""
        scope = Scope(_sender(owner), with_shared=with_shared)
        behind = None if after is None else after.id
        found = await self._store.read(_page, scope, wanted, behind, limit)
        return list(scope.check(each.memory for each in found))

    async def export(self, owner: Sender | str) -> list[MemoryUnit]:
        """Everything that is kept of an owner, history too, oldest first."""
        scope = Scope(_sender(owner), with_shared=False)
        memories: list[MemoryUnit] = []
        after = 0
        while found := await self._store.read(_all_of, scope.owner, after, GROUP):
            memories += scope.check(each.memory for each in found)
            after = found[-1].number
        return memories

    async def owners(self) -> list[tuple[Sender, int]]:
        """Return who has memories, and how many that count now."""
        return await self._store.read(MemoryStore.owners)

    # --- for what writes several together ------------------------------------------------

    async def mark(self, owner: Sender, name: str, value: str, *, once: bool = False) -> str:
        """Note something for an owner, which leaves with the owner; returns what is noted there then.

        Raises:
            ConfigurationError: the owner's name, or this one, is too long.
        """
        check_owner(owner)
        checked_id("a mark's name", name)
        return cast(str, await self._store.write(SetMark(owner=owner, name=name, value=value, once=once)))

    async def marks(self, owner: Sender, prefix: str = "") -> dict[str, str]:
        """Return what is noted for an owner, by the names that begin so."""
        return await self._store.read(MemoryStore.marks, owner, prefix)

    async def change_together(
        self,
        owner: Sender,
        *,
        new: Sequence[Mapping[str, Any]] = (),
        replaced: Sequence[tuple[str, Mapping[str, Any]]] = (),
        forgotten: Sequence[str] = (),
        marks: Mapping[str, str] | None = None,
        key: str = "",
    ) -> list[MemoryUnit]:
        """Remember, replace and forget in one step: all of it is there afterwards, or nothing. Returns what is new.

        `new` are arguments of `remember`, `replaced` are ids with arguments of `update`. Under the same `key` it is done once.

        Raises:
            MemoryNotFound, MemoryReplaced, ConfigurationError, MemoriesFull, MemoriesFailed: nothing of it is done.
        """
        check_owner(owner)
        puts = [
            self._put(owner, each, key=f"{key}/new{place}" if key else "", is_unique=True)
            for place, each in enumerate(new)
        ]
        changes = [
            self._replacement(owner, memory_id, each, key=f"{key}/{place}" if key else "")
            for place, (memory_id, each) in enumerate(replaced)
        ]
        texts = [put.unit.text for put in puts] + [change.changes["text"] for change in changes]
        vectors = iter(await self._embedder.vectors(texts))
        todo: list[Operation] = [attrs.evolve(put, vector=next(vectors)) for put in puts]
        todo += [attrs.evolve(change, vector=next(vectors)) for change in changes]
        if forgotten:
            scope = Scope(owner, with_shared=False)
            todo.append(ForgetThese(scope=scope, ids=[clean(each) for each in forgotten]))
        todo += [
            SetMark(owner=owner, name=checked_id("a mark's name", name), value=value)
            for name, value in (marks or {}).items()
        ]
        results = cast(list[Any], await self._store.write(Together(todo)))
        return results[: len(puts) + len(changes)]

    async def reindex(self, *, anew: bool = False) -> int:
        """Make the vectors of memories that have none, since `embed=` failed or was not given; returns their number.

        With `anew` of all memories, as after a change of the model.

        Raises:
            ConfigurationError: there is no `embed=`.
        """
        if self._embedder.embed is None:
            raise ConfigurationError("reindex() needs Memories(embed=...)")
        if anew:
            await self._store.write(Embed(vectors={}, is_anew=True))
        total = 0
        while found := await self._store.read(_without_vector, EMBEDDED):
            vectors = await self._embedder.vectors([text for _, text in found])
            made = {number: vector for (number, _), vector in zip(found, vectors, strict=True) if vector}
            if not made:
                break
            await self._store.write(Embed(vectors=made))
            total += len(made)
        return total


def _check_options(embed: Any, capacity: Any, half_life: Any) -> None:
    if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
        raise ConfigurationError(f"capacity= is a number of memories above 0, or None, not {capacity!r}")
    if half_life is not None and not (isinstance(half_life, int | float) and half_life > 0):
        raise ConfigurationError(f"half_life= is a number of days above 0, or None, not {half_life!r}")
    if embed is not None and not callable(embed):
        raise ConfigurationError(f"embed= takes a function from texts to vectors, not {embed!r}")


def _page(
    store: MemoryStore, scope: Scope, wanted: MemoryFilter, after: str | None, limit: int
) -> list[Found]:
    return store.page(scope, wanted, after=0 if after is None else store.number_of(scope, after), limit=limit)


def _all_of(store: MemoryStore, owner: Sender, after: int, limit: int) -> list[Found]:
    return store.all_of(owner, after=after, limit=limit)


def _without_vector(store: MemoryStore, limit: int) -> list[tuple[int, str]]:
    return store.without_vector(limit)


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a memory that a caller gives.

    Raises:
        ConfigurationError: one of them is wrong, or is none.
    """
    checks = {**_CHANGES, "metadata": _checked_metadata}
    unknown = [name for name in fields if name not in checks]
    if unknown:
        raise ConfigurationError(
            f"a memory has no field {unknown[0]!r} to be set: choose one of {', '.join(checks)}"
        )
    return {name: checks[name](value) for name, value in fields.items()}


def _checked_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    check_metadata(metadata)
    return {
        checked_id("a name of metadata", name): clean(value) if isinstance(value, str) else value
        for name, value in metadata.items()
    }


def _sender(owner: Sender | str) -> Sender:
    """An owner; a plain name is that of a user, as in sessions."""
    found = owner if isinstance(owner, Sender) else Sender.named(owner)
    return attrs.evolve(found, name=clean(found.name))


def _new_id() -> str:
    return f"m{secrets.token_hex(8)}"
