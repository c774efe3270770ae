"""Reader of the lines of a byte stream, for protocols over standard input and output."""

from collections.abc import AsyncGenerator

import trio

MAX_LINE_BYTES = 10 * 1024 * 1024
"""Maximum length of a line in bytes. Longer lines are discarded."""

HEAD_BYTES = 1_000
"""Length of the beginning of a longer line that is kept."""


class LongLine(bytes):
    """Beginning of a line that is longer than `MAX_LINE_BYTES`."""


async def read_lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a byte stream without line ends; a `LongLine` for a line that is longer than `MAX_LINE_BYTES`."""
    buffer, is_discarding = bytearray(), False
    async for chunk in stream:
        searched = len(buffer)
        buffer += chunk
        begin = 0
        while (end := buffer.find(b"\n", max(begin, searched))) >= 0:
            if is_discarding:
                is_discarding = False
            else:
                line = bytes(buffer[begin:end])
                yield line if len(line) <= MAX_LINE_BYTES else LongLine(line[:HEAD_BYTES])
            begin = end + 1
        del buffer[:begin]
        if len(buffer) > MAX_LINE_BYTES and not is_discarding:
            is_discarding = True
            yield LongLine(buffer[:HEAD_BYTES])
        if is_discarding:
            buffer.clear()
    if buffer and not is_discarding:
        yield bytes(buffer)
