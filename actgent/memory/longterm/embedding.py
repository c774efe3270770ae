"""Conversion of texts to vectors by the program's `embed=` function. Without vectors, recall compares words only."""

import array
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.support import span_names as names
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import Attribute, begin_operation, error_type
from actgent.support.user_code_calls import DedicatedThreadLimiter, convert_user_error

Vectors: TypeAlias = Sequence[Sequence[float]]
EmbedTexts: TypeAlias = Callable[[Sequence[str]], Vectors | Awaitable[Vectors]]
"""Sync or async function that returns one vector per text, all of the same length. A sync function runs in a thread."""

EMBED_TIMEOUT_SECONDS = 10.0
"""Maximum seconds for one call of `embed=`. After it recall compares words only."""
_FLOAT_BYTES = 4
"""Size of a number of a packed vector."""

_log = logger_of(__name__)


@attrs.frozen(eq=False)
class Embedder:
    """Calls the `embed=` function of some memories. A failure or timeout is logged and returns no vectors."""

    embed: EmbedTexts | None
    """Function that computes vectors; None if recall compares only words."""
    place: str
    """URL of the memory store, for error texts."""
    _threads: DedicatedThreadLimiter = attrs.field(factory=DedicatedThreadLimiter, init=False, repr=False)

    async def vectors(self, texts: Sequence[str]) -> list[bytes | None]:
        """Return the vector of each text as bytes. If there is no function, or it fails or times out, all are None.

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
                error = convert_user_error(raised, "embed", self.place)
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
    """Encode a vector. An array of 32-bit floats, e.g. of numpy, is copied at once."""
    with contextlib.suppress(TypeError):  # most sequences have no buffer
        view = memoryview(vector)  # type: ignore[arg-type]
        if view.format == "f" and view.ndim == 1:
            return view.tobytes()
    return array.array("f", vector).tobytes()


def _pack_vectors(vectors: Vectors, count: int) -> list[bytes | None]:
    """Encode vectors as 32-bit floats, as stores hold them.

    Raises:
        ConfigurationError: The number of vectors differs from `count`, or their lengths differ.
    """
    packed = [_to_bytes(vector) for vector in vectors]
    if len(packed) != count or len({len(each) for each in packed}) != 1 or not packed[0]:
        raise ConfigurationError(
            f"embed= returned {counted(len(packed), 'vector')} for {counted(count, 'text')}, or vectors of different lengths: it must return one vector per text"
        )
    return list(packed)
