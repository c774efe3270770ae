"""Texts to vectors, by a function of the program's own; without them words have to do."""

import array
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.support.foreign import OwnThreads, failure_of
from actgent.support.logs import logger_of

Vectors: TypeAlias = Sequence[Sequence[float]]
EmbedTexts: TypeAlias = Callable[[Sequence[str]], Vectors | Awaitable[Vectors]]
"""Texts to vectors, one each and all of one length. A sync function runs in a thread."""

EMBED_TIMEOUT = 10.0
"""Seconds for the vectors of some texts; without them words have to do."""

_log = logger_of(__name__)


@attrs.frozen(eq=False)
class Embedder:
    """The function of some memories, and what comes of it where it fails or is slow."""

    embed: EmbedTexts | None
    place: str
    """The memories' address, for errors."""
    _threads: OwnThreads = attrs.field(factory=OwnThreads, init=False, repr=False)

    async def vectors(self, texts: Sequence[str]) -> list[bytes | None]:
        """The vectors of some texts; None for each where there is no function, or it failed."""
        nothing: list[bytes | None] = [None] * len(texts)
        if self.embed is None or not texts:
            return nothing
        error: BaseException = TimeoutError(f"no vectors within {EMBED_TIMEOUT:g} s")
        try:
            with trio.move_on_after(EMBED_TIMEOUT):
                return _packed(await self._embedded(texts), len(texts))
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "embed", self.place)
        _log.warning("no vectors of %s: only words are compared: %s", counted(len(texts), "text"), error)
        return nothing

    async def _embedded(self, texts: Sequence[str]) -> Vectors:
        embed = self.embed
        assert embed is not None  # noqa: S101 - its caller looked
        call = type(embed).__call__  # of an object that is called like a function
        if inspect.iscoroutinefunction(embed) or inspect.iscoroutinefunction(call):
            return await cast(Awaitable[Vectors], embed(texts))
        made = await self._threads.run_sync(embed, texts)
        return await made if inspect.isawaitable(made) else made


def _packed(vectors: Vectors, count: int) -> list[bytes | None]:
    """Vectors as stores keep them: 32-bit floats.

    Raises:
        ConfigurationError: there is not one for each text, or they are of different lengths.
    """
    packed = [array.array("f", vector).tobytes() for vector in vectors]
    if len(packed) != count or len({len(each) for each in packed}) != 1 or not packed[0]:
        raise ConfigurationError(
            f"embed= gave {counted(len(packed), 'vector')} for {counted(count, 'text')}, or some of different lengths: it gives one for each text"
        )
    return list(packed)
