"""`LongTermMemory`: the public interface of long-term memories."""

import array
import contextlib
import importlib.util
import inspect
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, cast

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.memory.memory_interface import LongTermMemoryBase
from actgent.messages import Sender
from actgent.support import span_names as names
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import Attribute, TracedWork, active_trace, begin_operation, error_type
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.user_code_calls import DedicatedThreadLimiter, convert_user_error
from actgent.support.word_normalization import separate_words

from .concurrent_store_access import MAX_GROUP, StoreAccess
from .memory_records import (
    EVERYTHING,
    Association,
    MemoryFilter,
    MemoryMatch,
    MemoryOwnerPage,
    MemoryPage,
    MemoryRecord,
    check_metadata,
    sanitize_text,
    validate_id,
    validate_importance,
    validate_name,
    validate_text,
    validate_time,
)
from .memory_store import Found, MemoryStore
from .memory_store_operations import (
    Associate,
    Embed,
    Erase,
    ForgetMemories,
    Operation,
    Put,
    Replace,
    Search,
    SetMark,
    Transaction,
)
from .memory_visibility_by_owner import Scope, check_owner, owner_key
from .months_in_questions import named_months

Vectors: TypeAlias = Sequence[Sequence[float]]
EmbedTexts: TypeAlias = Callable[[Sequence[str]], Vectors | Awaitable[Vectors]]
"""Sync or async function that returns one vector per text, all of the same length. A sync function runs in a thread."""

EMBED_TIMEOUT_SECONDS = 10.0
"""Maximum seconds for one call of `embed=`. After it recall compares words only."""
_FLOAT_BYTES = 4
"""Size of a number of a packed vector."""


@attrs.frozen(eq=False)
class Embedder:
    """Caller of the `embed=` function of long-term memories. A failure or timeout is logged and returns no vectors."""

    embed: EmbedTexts | None
    """Function that computes the vectors of texts; None if recall compares only words."""
    store_url: str
    """URL of the memory store, for error texts."""
    _threads: DedicatedThreadLimiter = attrs.field(factory=DedicatedThreadLimiter, init=False, repr=False)

    async def vectors(self, texts: Sequence[str]) -> list[bytes | None]:
        """Return the vector of each text as bytes. If there is no function, or it fails or times out, all vectors are None.

        Failures are logged, and memories are then compared by words only.
        """
        nothing: list[bytes | None] = [None] * len(texts)
        if self.embed is None or not texts:
            return nothing
        error: Exception = TimeoutError(f"no vectors within {EMBED_TIMEOUT_SECONDS:g} s")
        facts: dict[str, Attribute] = {names.PROVIDER: "unknown"}
        with begin_operation(names.EMBEDDINGS, attributes=facts, kind="client") as span:
            try:
                with trio.move_on_after(EMBED_TIMEOUT_SECONDS):
                    vectors = _pack_vectors(await self._call_embed(texts), len(texts))
                    if span is not None:
                        span.facts[names.EMBEDDING_DIMENSIONS] = len(vectors[0] or b"") // _FLOAT_BYTES
                    return vectors
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything
                error = convert_user_error(raised, "embed", self.store_url)
            if span is not None:
                span.error = error_type(error)
        _log.warning("no vectors of %s: only words are compared: %s", counted(len(texts), "text"), error)
        return nothing

    async def _call_embed(self, texts: Sequence[str]) -> Vectors:
        embed = self.embed
        assert embed is not None  # noqa: S101 - checked by the caller
        call = type(embed).__call__  # a callable object may have an async method
        if inspect.iscoroutinefunction(embed) or inspect.iscoroutinefunction(call):
            return await cast(Awaitable[Vectors], embed(texts))
        made = await self._threads.run_sync(embed, texts)
        return await made if inspect.isawaitable(made) else made


def _to_bytes(vector: Sequence[float]) -> bytes:
    """Encode a vector as bytes of 32-bit floats. An array of 32-bit floats, e.g. of numpy, is copied at once."""
    with contextlib.suppress(TypeError):  # most sequences have no buffer
        view = memoryview(vector)  # type: ignore[arg-type]
        if view.format == "f" and view.ndim == 1:
            return view.tobytes()
    return array.array("f", vector).tobytes()


def _pack_vectors(vectors: Vectors, count: int) -> list[bytes | None]:
    """Encode vectors as bytes of 32-bit floats, as stores hold them. `count` is the number of texts.

    Raises:
        ConfigurationError: The number of vectors differs from `count`, or their lengths differ.
    """
    try:
        packed = [_to_bytes(vector) for vector in vectors]
    except TypeError as error:
        raise ConfigurationError(
            f"embed= must return one vector per text, a list of lists of numbers, not {vectors!r:.100} ({error})"
        ) from None
    if len(packed) != count or len({len(each) for each in packed}) != 1 or not packed[0]:
        raise ConfigurationError(
            f"embed= returned {counted(len(packed), 'vector')} for {counted(count, 'text')}, or vectors of different lengths: it must return one vector per text"
        )
    return list(packed)


T = TypeVar("T")

REINDEX_BATCH = 100
"""Number of texts in one call of `embed=` by `reindex`."""

_log = logger_of(__name__)
_CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "text": validate_text,
    "kind": lambda kind: sanitize_text(validate_name("a memory's kind", kind)),
    "importance": validate_importance,
    "is_kept": bool,
    "is_shared": bool,
    "agent": sanitize_text,
    "session_id": partial(validate_id, "session_id"),
    "message_id": sanitize_text,
    "valid_from": lambda at: validate_time("valid_from", at),
    "valid_until": lambda at: validate_time("valid_until", at),
}
"""Validator of each field that a caller can set, by name. `metadata` has a separate validator."""


@lists_arguments
class LongTermMemory(LongTermMemoryBase):
    """Long-term memories of owners in a database, for agents (`Agent(long_term_memory=...)`) and programs.

    They are open inside an `async with` block, and while an agent with these memories runs. All times are Unix times in seconds.

    A memory belongs to an owner. Each call acts for one owner: it sees the owner's memories and shared ones, and changes only the
    owner's. After a call returns, its changes are durable. A cancelled call has made all of its changes or none; a retry with the
    same `key` makes none twice.

    Args:
        url: `sqlite:///FILE` (a separate file, not a journal); `postgres://HOST/DATABASE` (schema `actgent_memories`, or
            `?schema=`; needs the extra `postgres`); `memory:` keeps the memories until the block exits.
        embed: Sync or async function that returns one vector per text, for recall by meaning. Needs the extra `vector` with
            SQLite, the extension pgvector with PostgreSQL. None recalls by words only.
        capacity: Maximum number of memories per owner; None has no maximum. A new memory evicts the one with the lowest worth,
            never one with `is_kept`.
        half_life: Days without use after which the importance of a memory halves; None disables the decay.
        now: Returns the current Unix time in seconds.

    Raises:
        ConfigurationError: An argument is invalid, or an extra is not installed.
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
        opening = _store_opener(url, has_vectors=embed is not None, capacity=capacity, half_life=half_life)
        self._store = StoreAccess(repr(self), opening, is_alone=url.startswith("memory:"))

    def __repr__(self) -> str:
        return f"<LongTermMemory {self.url.rsplit('@', maxsplit=1)[-1]!r}>"

    # --- opening and closing -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._store.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.release()  # noqa: ASYNC102 - its writes are shielded and have a time limit

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
    ) -> MemoryRecord:
        """Store a memory durably, and return it. The arguments are fields of `MemoryRecord`.

        A second call with the same `key` for an owner stores nothing, and returns the memory of the first, even if that was
        forgotten since. With `is_unique`, an existing memory with the same kind and text is returned instead of a second one.

        Raises:
            ConfigurationError: An argument is invalid, the owner's name exceeds 1,000 bytes as JSON, or `key`, `session_id` or a
                metadata name exceeds 1,600 bytes in UTF-8.
            MemoriesFull: The owner has `capacity` memories, and all of them have `is_kept`.
            MemoriesFailed: The memory could not be written.
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
        with begin_memory_span(names.CREATE_MEMORY) as span:
            vectors = await self._embedder.vectors([put.memory.text])
            made = cast(MemoryRecord, await self._store.write(attrs.evolve(put, vector=vectors[0])))
            note_records(span, [made])
            return made

    def _put(self, owner: Sender, fields: Mapping[str, Any], *, key: str, is_unique: bool = False) -> Put:
        at = self._now()
        check_owner(owner)
        memory = MemoryRecord(
            id=_new_id(), owner=owner, created_at=at, last_used=at, **_validate_fields(fields)
        )
        return Put(memory=memory, key=validate_id("key", key), is_unique=is_unique)

    async def update(
        self, memory_id: str, text: str | None = None, *, owner: Sender | str, key: str = "", **changes: Any
    ) -> MemoryRecord:
        """Replace a memory by a new version, and return the new version. The old version stays readable in the history.

        Args:
            memory_id: Id of the memory to replace.
            text: New text; None keeps the text.
            owner: Owner of the memory.
            key: A second call with the same key replaces nothing, and returns the result of the first.
            changes: Further fields to change, see `remember`. Other fields are copied from the old memory.

        Raises:
            MemoryNotFound: The owner has no memory with this id.
            MemoryReplaced: The memory was replaced before. The error contains the id of the newer one.
            ConfigurationError: An argument is invalid, see `remember`.
            MemoriesFailed: The memory could not be written.
        """
        fields = changes if text is None else {**changes, "text": text}
        todo = self._replacement(_sender(owner), memory_id, fields, key=key)
        fresh = todo.changes.get("text")
        with begin_memory_span(names.UPDATE_MEMORY) as span:
            if self._embedder.embed is not None:
                if fresh is None:
                    fresh = (await self.get(memory_id, owner=owner)).text
                todo = attrs.evolve(todo, vector=(await self._embedder.vectors([fresh]))[0])
            made = cast(MemoryRecord, await self._store.write(todo))
            note_records(span, [made])
            return made

    def _replacement(self, owner: Sender, memory_id: str, changes: Mapping[str, Any], *, key: str) -> Replace:
        scope = Scope(owner, with_shared=False)
        return Replace(
            scope=scope,
            old=sanitize_text(str(memory_id)),
            new_id=_new_id(),
            changes=_validate_fields(changes),
            now=self._now(),
            key=validate_id("key", key),
        )

    async def forget(self, *ids: str, owner: Sender | str, filters: MemoryFilter | None = None) -> int:
        """Delete memories with their history, by ids or by a filter, and return their number.

        `is_kept` memories are deleted, too.

        Unknown ids and ids of other owners are ignored.

        Raises:
            ConfigurationError: Neither ids nor a filter with a condition is given. `erase` deletes all memories of an owner.
            MemoriesFailed: The deletion could not be written.
        """
        if bool(ids) is (filters is not None) or (filters is not None and filters.is_empty):
            raise ConfigurationError(
                "forget() needs ids, or filters=MemoryFilter(...) with a condition; call erase(owner) to delete all memories"
            )
        scope = Scope(_sender(owner), with_shared=False)
        todo = ForgetMemories(
            scope=scope, ids=[sanitize_text(str(each)) for each in ids], filters=filters or EVERYTHING
        )
        with begin_memory_span(names.DELETE_MEMORY) as span:
            deleted = cast(int, await self._store.write(todo))
            if span is not None:
                span.facts[names.MEMORY_COUNT] = deleted
            return deleted

    async def erase(self, owner: Sender | str) -> int:
        """Delete all data of an owner, and return the number of deleted memories.

        The data are memories with their history, index entries, links, idempotency keys and named values.
        """
        return cast(int, await self._store.write(Erase(owner=_sender(owner))))

    async def associate(
        self, memory_id: str, other_id: str, relation: str = "related_to", *, owner: Sender | str
    ) -> bool:
        """Link two memories of an owner. Return False if the link exists already.

        `associations` of both memories return the link.

        Raises:
            MemoryNotFound: One of the ids is not a memory of the owner.
        """
        return await self._link(memory_id, other_id, relation, owner, is_removed=False)

    async def dissociate(
        self, memory_id: str, other_id: str, relation: str = "related_to", *, owner: Sender | str
    ) -> bool:
        """Delete a link between two memories. Return False if it does not exist.

        Raises:
            MemoryNotFound: One of the ids is not a memory of the owner.
        """
        return await self._link(memory_id, other_id, relation, owner, is_removed=True)

    async def _link(self, a: str, b: str, relation: str, owner: Sender | str, *, is_removed: bool) -> bool:
        scope = Scope(_sender(owner), with_shared=False)
        word = sanitize_text(validate_name("a relation", relation))
        todo = Associate(
            scope=scope,
            source=sanitize_text(a),
            target=sanitize_text(b),
            relation=word,
            is_removed=is_removed,
        )
        return cast(bool, await self._store.write(todo))

    # --- recalling -----------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        owner: Sender | str,
        limit: int = 10,
        filters: MemoryFilter = EVERYTHING,
        at: float | None = None,
        with_shared: bool = True,
    ) -> list[MemoryMatch]:
        """Return the memories that match a query by words or vectors, best first.

        Without words, return the most important memories.

        Only current memories that are valid at the time `at` are returned; None means now. All words of a query are searched; none
        is an operator. The scores of words and vectors are added. Neighbours in the same session get a part of a memory's score.
        If the query names a month with its year, memories created in that month score three times as much.
        Importance and age decide between equal scores. Of memories with equal texts, one is returned.

        Args:
            query: Text to search for.
            owner: Owner whose memories are searched.
            limit: Maximum number of results.
            filters: Conditions that the results must meet.
            at: Unix time in seconds at which the memories must be valid; None means now.
            with_shared: True also searches memories that other owners share.

        Raises:
            ConfigurationError: `limit` is below 1, or the query's vector has another length than the stored ones.
            MemoriesFailed: The memories cannot be read.
        """
        _check_limit(limit)
        with begin_memory_span(names.SEARCH_MEMORY, query) as span:
            found = await self._recall(query, _sender(owner), limit, filters, at, with_shared=with_shared)
            note_records(span, [each.memory for each in found])
            return found

    async def _recall(
        self,
        query: str,
        owner: Sender,
        limit: int,
        filters: MemoryFilter,
        at: float | None,
        *,
        with_shared: bool,
    ) -> list[MemoryMatch]:
        """Search memories, and note the use of the found ones. The arguments are those of `recall`."""
        scope = Scope(owner, with_shared=with_shared)
        search = await self._search(query, scope, filters, self._now() if at is None else at, limit)
        best = await self._store.read(MemoryStore.search, search)
        await self._store.note_uses([number for number, _ in best], at=self._now())
        for _ in scope.check(recalled.memory for _, recalled in best):
            pass
        return [recalled for _, recalled in best]

    async def _search(
        self, query: str, scope: Scope, filters: MemoryFilter, at: float | None, limit: int
    ) -> Search:
        words = searched_words(sanitize_text(query))
        vector = (await self._embedder.vectors([sanitize_text(query)]))[0] if words else None
        return Search(
            scope=scope,
            words=words,
            vector=vector,
            filters=filters,
            periods=named_months(query),
            at=at,
            limit=limit,
        )

    async def get(self, memory_id: str, *, owner: Sender | str) -> MemoryRecord:
        """Return the memory with this id. The memory may be current or replaced.

        Raises:
            MemoryNotFound: Neither the owner's nor the shared memories contain this id.
        """
        scope = Scope(_sender(owner))
        return next(scope.check([await self._store.read(MemoryStore.get, scope, sanitize_text(memory_id))]))

    async def history(self, memory_id: str, *, owner: Sender | str) -> list[MemoryRecord]:
        """Return all versions of a memory, the first version first. `memory_id` is the id of any version.

        Raises:
            MemoryNotFound: Neither the owner's nor the shared memories contain this id.
        """
        scope = Scope(_sender(owner))
        return list(scope.check(await self._store.read(MemoryStore.history, scope, sanitize_text(memory_id))))

    async def associations(self, memory_id: str, *, owner: Sender | str) -> list[Association]:
        """Return the links between a memory and current memories, in both directions.

        Raises:
            MemoryNotFound: Neither the owner's nor the shared memories contain this id.
        """
        return await self._store.read(
            MemoryStore.associations, Scope(_sender(owner)), sanitize_text(memory_id)
        )

    async def page(
        self,
        *,
        owner: Sender | str,
        filters: MemoryFilter = EVERYTHING,
        after: MemoryRecord | None = None,
        limit: int = 100,
        with_shared: bool = False,
    ) -> list[MemoryRecord]:
        """Return at most `limit` current memories, oldest first, without counting this as a use.

        The page begins after the memory `after`, the last one of the previous page; None begins with the
        oldest.
        """
        scope = Scope(_sender(owner), with_shared=with_shared)
        after_id = None if after is None else after.id
        _check_limit(limit)
        found = await self._store.read(_page, scope, filters, after_id, limit)
        return list(scope.check(each.memory for each in found))

    async def browse(
        self,
        query: str = "",
        *,
        owner: Sender | str,
        filters: MemoryFilter = EVERYTHING,
        after: str | None = None,
        limit: int = 100,
    ) -> MemoryPage:
        """Return current memories of an owner for a review, without counting this as a use.

        Unlike `recall`, it also returns memories that are not valid now. A query returns one page with the best matches.
        Without a query, the pages have all memories, newest first.

        Args:
            query: Text to search for; without words, all memories are returned.
            owner: Owner of the memories. Shared memories of other owners are left out.
            filters: Conditions that the memories must meet.
            after: `following` of the previous page, also if its memories were forgotten since; None returns the first page.
            limit: Maximum number of memories.

        Raises:
            ConfigurationError: `limit` is below 1, `after` is invalid, or the query's vector has another length than the stored ones.
            MemoriesFailed: The memories cannot be read.
        """
        if limit < 1:
            raise ConfigurationError(f"limit= must be at least 1, not {limit!r}")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):  # noqa: PLR2004 - an int64
            raise ConfigurationError(f"after= must be `following` of an earlier page, not {after!r:.80}")
        scope = Scope(_sender(owner), with_shared=False)
        if searched_words(sanitize_text(query)):
            best = await self._store.read(
                MemoryStore.search, await self._search(query, scope, filters, None, limit)
            )
            return MemoryPage(memories=tuple(scope.check(each.memory for _, each in best)), following=None)
        before = None if after is None else int(after)
        found = await self._store.read(_read_newest, scope, filters, before, limit + 1)
        memories = tuple(scope.check(each.memory for each in found[:limit]))
        following = str(found[limit - 1].number) if len(found) > limit else None
        return MemoryPage(memories=memories, following=following)

    async def export(self, owner: Sender | str) -> list[MemoryRecord]:
        """Return all memories of an owner, replaced ones included, oldest first."""
        scope = Scope(_sender(owner), with_shared=False)
        memories: list[MemoryRecord] = []
        after = 0
        while found := await self._store.read(_read_all_of, scope.owner, after, MAX_GROUP):
            memories += scope.check(each.memory for each in found)
            after = found[-1].number
        return memories

    async def owners(self) -> list[tuple[Sender, int]]:
        """Return all owners with the number of their current memories."""
        return await self._store.read(MemoryStore.owners)

    async def owner_page(self, *, after: str | None = None, limit: int = 100) -> MemoryOwnerPage:
        """Return a page of the owners with the number of their current memories.

        Args:
            after: `following` of the previous page; None returns the first page.
            limit: Maximum number of owners.

        Raises:
            ConfigurationError: `limit` is below 1.
            MemoriesFailed: The memories cannot be read.
        """
        if limit < 1:
            raise ConfigurationError(f"limit= must be at least 1, not {limit!r}")
        found = await self._store.read(MemoryStore.owners, after or "", limit + 1)
        owners = tuple(found[:limit])
        return MemoryOwnerPage(
            owners=owners, following=owner_key(owners[-1][0]) if len(found) > limit else None
        )

    # --- several changes at once ----------------------------------------------------------

    async def mark(self, owner: Sender, name: str, value: str, *, once: bool = False) -> str:
        """Store a named text for an owner, such as the position of a background job, and return the stored text.

        With `once`, an existing value stays and is returned. `erase` deletes the value.

        Raises:
            ConfigurationError: The owner's name or `name` is too long.
        """
        check_owner(owner)
        validate_id("a mark's name", name)
        return cast(str, await self._store.write(SetMark(owner=owner, name=name, value=value, once=once)))

    async def marks(self, owner: Sender, prefix: str = "") -> dict[str, str]:
        """Return the named values of an owner whose names start with `prefix`."""
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
    ) -> list[MemoryRecord]:
        """Add, replace and delete memories in one transaction. Return the new memories.

        Args:
            owner: Owner of the memories.
            new: Arguments of `remember` for each memory to add.
            replaced: Id and arguments of `update` for each memory to replace.
            forgotten: Ids of memories to delete.
            marks: Named values to store, see `mark`.
            key: A second call with the same key changes nothing.

        Raises:
            MemoryNotFound: An id in `replaced` is not a memory of the owner. No change is made, as with the other errors.
            MemoryReplaced: A memory in `replaced` was replaced before.
            ConfigurationError: A field is invalid.
            MemoriesFull: The owner has `capacity` memories, and all of them have `is_kept`.
            MemoriesFailed: The changes could not be written.
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
        others: list[Operation] = []
        if forgotten:
            scope = Scope(owner, with_shared=False)
            others.append(ForgetMemories(scope=scope, ids=[sanitize_text(each) for each in forgotten]))
        others += [
            SetMark(owner=owner, name=validate_id("a mark's name", name), value=value)
            for name, value in (marks or {}).items()
        ]
        with begin_memory_span(names.UPSERT_MEMORY) as span:
            made = await self._write_together(puts, changes, others)
            note_records(span, made)
            return made

    async def _write_together(
        self, puts: Sequence[Put], changes: Sequence[Replace], others: Sequence[Operation]
    ) -> list[MemoryRecord]:
        """Compute the vectors of new memories, write all operations in one transaction, and return the new memories."""
        texts = [put.memory.text for put in puts] + [change.changes["text"] for change in changes]
        vectors = iter(await self._embedder.vectors(texts))
        todo: list[Operation] = [attrs.evolve(put, vector=next(vectors)) for put in puts]
        todo += [attrs.evolve(change, vector=next(vectors)) for change in changes]
        results = cast(list[Any], await self._store.write(Transaction([*todo, *others])))
        return results[: len(puts) + len(changes)]

    async def reindex(self, *, recompute: bool = False) -> int:
        """Compute the vectors of all current memories without a vector, and return the number of these memories.

        The call is needed after `embed=` failed or was added.

        If `embed=` fails again, the call ends without an error, and the rest keeps no vectors.

        Args:
            recompute: True deletes all vectors first, as needed after a change of the embedding model.

        Raises:
            ConfigurationError: The memories were created without an `embed=` function.
        """
        if self._embedder.embed is None:
            raise ConfigurationError(
                "reindex() computes vectors, and this memory has no embedding function: create it with LongTermMemory(embed=...)"
            )
        if recompute:
            await self._store.write(Embed(vectors={}, is_anew=True))
        total = 0
        while found := await self._store.read(_read_without_vector, REINDEX_BATCH):
            vectors = await self._embedder.vectors([text for _, text in found])
            made = {number: vector for (number, _), vector in zip(found, vectors, strict=True) if vector}
            if not made:
                break
            await self._store.write(Embed(vectors=made))
            total += len(made)
        return total


def _check_options(embed: Any, capacity: Any, half_life: Any) -> None:
    if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
        raise ConfigurationError(f"capacity= must be a number of memories above 0, or None, not {capacity!r}")
    if half_life is not None and not (isinstance(half_life, int | float) and half_life > 0):
        raise ConfigurationError(f"half_life= must be a number of days above 0, or None, not {half_life!r}")
    if embed is not None and not callable(embed):
        raise ConfigurationError(f"embed= must be a function that returns vectors of texts, not {embed!r}")


def _check_limit(limit: int) -> None:
    if type(limit) is not int or limit < 1:
        raise ConfigurationError(f"limit= must be a whole number of at least 1, not {limit!r:.200}")


def _page(
    store: MemoryStore, scope: Scope, filters: MemoryFilter, after: str | None, limit: int
) -> list[Found]:
    return store.page(
        scope, filters, after=0 if after is None else store.number_of(scope, after), limit=limit
    )


def _read_newest(
    store: MemoryStore, scope: Scope, filters: MemoryFilter, before: int | None, limit: int
) -> list[Found]:
    return store.newest(scope, filters, before=before, limit=limit)


def _read_all_of(store: MemoryStore, owner: Sender, after: int, limit: int) -> list[Found]:
    return store.all_of(owner, after=after, limit=limit)


def _read_without_vector(store: MemoryStore, limit: int) -> list[tuple[int, str]]:
    return store.without_vector(limit)


def _validate_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the fields of a memory, and return them.

    Raises:
        ConfigurationError: A field is unknown or has an invalid value.
    """
    checks = {**_CHANGES, "metadata": _validate_metadata}
    unknown = [name for name in fields if name not in checks]
    if unknown:
        raise ConfigurationError(
            f"a memory has no field {unknown[0]!r} that can be set: use one of {', '.join(checks)}"
        )
    return {name: checks[name](value) for name, value in fields.items()}


def _validate_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    check_metadata(metadata)
    return {
        validate_id("a name of metadata", name): sanitize_text(value) if isinstance(value, str) else value
        for name, value in metadata.items()
    }


def _sender(owner: Sender | str) -> Sender:
    """Return the owner as a `Sender`. A text is the name of a user, as in sessions."""
    found = owner if isinstance(owner, Sender) else Sender.named(owner)
    return attrs.evolve(found, name=sanitize_text(found.name))


def _new_id() -> str:
    return f"m{secrets.token_hex(8)}"


# --- stores ------------------------------------------------------------------------------


def _store_opener(
    url: str, *, has_vectors: bool, capacity: int | None, half_life: float | None
) -> Callable[[], MemoryStore]:
    """Return a function that opens the store at a URL. Call the function in the thread that will use the store.

    Raises:
        ConfigurationError: The URL has an unknown scheme, or the extra of its database is not installed.
    """
    options: dict[str, Any] = {"has_vectors": has_vectors, "capacity": capacity, "half_life": half_life}
    if url in ("memory:", "memory://"):
        return partial(_sqlite, "", **options)
    if url.startswith("sqlite:///") and not url.endswith("/"):
        return partial(_sqlite, url.removeprefix("sqlite:///"), **options)
    if url.startswith(("postgres://", "postgresql://")):
        if importlib.util.find_spec("psycopg") is None:
            raise ConfigurationError(
                "memories in PostgreSQL require an extra package: pip install 'actgent[postgres]'"
            )
        return partial(_postgres, url, **options)
    raise ConfigurationError(
        f"{url.rsplit('@', maxsplit=1)[-1]!r} is not a URL of a memory store: use 'sqlite:///FILE', "
        "'postgres://HOST/DATABASE' or 'memory:'"
    )


# Imported only when a URL names them, since each store needs a separate database library.


def _sqlite(path: str, **options: Any) -> MemoryStore:
    from .sqlite_store import SQLiteStore  # noqa: PLC0415

    return SQLiteStore(path, **options)


def _postgres(url: str, **options: Any) -> MemoryStore:
    from .postgres_store import PostgresStore  # noqa: PLC0415

    return PostgresStore(url, **options)


# --- tokenizer -------------------------------------------------------------------------------

_WORD = re.compile(r"\w+")
MAX_WORDS = 64
"""Maximum number of words of a query. Of a longer query, the first and last words are used."""
_COMMON = frozenset(
    "a about am an and any are as at be been but by can could did do does for from had has have he her him his how i if in is it "
    "its just me my no not of on or our she should so some tell than that the their them then there they this to us was we were "
    "what when where which who whom whose why will with would you your".split()
)
"""English stop words: they occur in most queries and do not change the result."""


def searched_words(question: str) -> list[str]:
    """Return the distinct words of a question to search for, in their order.

    Stop words are included only if there are no other words. Of a very long question, words in the middle are
    left out.
    """
    found = _WORD.findall(separate_words(question))
    significant = [word for word in found if word not in _COMMON] or found
    words = list(dict.fromkeys(significant))
    half = MAX_WORDS // 2
    return words if len(words) <= MAX_WORDS else words[:half] + words[-half:]


# --- memory spans ----------------------------------------------------------------------------

PROVIDER = "actgent"
"""Value of `gen_ai.provider.name` of memory operations."""


def begin_memory_span(operation: str, query: str | None = None) -> AbstractContextManager[TracedWork | None]:
    """Return a context manager that records a memory operation as a tracing span of the running turn.

    `query` is the text of a search, for telemetry with contents; None for other operations.
    """
    attributes: dict[str, Attribute] = {names.PROVIDER: PROVIDER}
    active = active_trace.get()
    if active is not None and query is not None:
        attributes |= active.tracing.content(names.MEMORY_QUERY, lambda: query)
    return begin_operation(operation, attributes=attributes, kind="client")


def note_records(span: TracedWork | None, memories: Sequence[MemoryRecord]) -> None:
    """Add the number of memories to the tracing span of their operation. For a single memory, also add its id."""
    if span is None:
        return
    span.facts[names.MEMORY_COUNT] = len(memories)
    if len(memories) == 1:
        span.facts[names.MEMORY_ID] = memories[0].id
