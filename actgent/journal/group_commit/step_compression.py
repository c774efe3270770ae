"""Compression of the bodies of steps, with a dictionary of the field names that all steps share.

A body is compressed by itself, so that each row can be read alone. Short bodies are stored as they are: to compress
each body took an eighth of the CPU of a durable turn with 100 sessions at once (1,062 instead of 942 thousand instructions).
"""

import zlib

COMPRESSED = 0xD1
"""First byte of a compressed body. It is above every version of uncompressed bodies, so an older actgent rejects it."""
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, 12, 4
"""Parameters of zlib. The default window of 32 KB costs 14 us more per step than a window of 4 KB."""
_NAMES = (
    b"\x92\xa6opened\x83\xa5owner\x81\xa4name\xaacreated_at\xcbA\xda\xa5agent\xb0parent_id\xacparent_agent"
    b"\x92\xa6closed\x92\xa3due\x92\xa7changed\x92\xa8answered\x92\xa5fired\x92\xa5rated\x92\xa9suspended\x92\xa7resumed"
    b"\xa8priority\xa8metadata\xa7channel\xa7subject\xa6status\xa5error\xa5media\xa6native\xa8thinking\xa9signature"
    b"\xa7fitting\xa6shares\xa9shortened\xa4room\xa6tokens\xacinput_tokens\xadoutput_tokens\xb0cached_tokens"
    b"\xb0reasoning_tokens\xa5usage\xa4cost\xa6reason\xa4kind\xa4user\xa6system\xa5agent\xa6answer\xa5value\xa4data"
    b'{"status": "success", "message": "", "result": {"error": "", "id": ", "name": ": true, ": false, ": null, "'
    b"\x01\x91\x92\xa8accepted\x81\xa7message\x85\xa2id\xa2m0\xaasession_id\xa6sender\x81\xa4name\xa3ada"
    b"\xa5parts\x91\x92\xa4text\x81\xa4text\xda\x01\xaacreated_at\xcbA\xda"
    b"\x01\x92\x92\xa8appended\x83\xaamessage_id\xa6limits\x81\xabmodel_calls\xa2at\xcbA\xda"
    b"\x92\xa5spent\x82\xa4turn\xabmodel_calls\x01"
    b"\x01\x94\x92\xa9delivered\x81\xa3ids\x91\xb5\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?"
    b"\x92\xa5ended\x81\xaamessage_id\x92\xa8accepted\x81\xa7message\x85\xa2id"
    b"\x01\x92\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?\x92\xa4said\x86\xa7message\x87\xa2id\xb5"
    b"\xaasession_id\xa6sender\x82\xa4name\xa4kind\xa9assistant\xa5parts\x91\x92\xa4text\x81\xa4text"
    b"\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa4stop\xa3end\xa5model\xa5calls\x03\xa6prompt\xa8"
    b"\xa7seconds\xcb?"
    b"\x01\x91\x92\xa4said\x82\xa7message\x87\xa2id\xb5\xaasession_id\xa6sender\x82\xa4name\xa5tools\xa4kind\xa4tool"
    b"\xa5parts\x91\x92\xa6result\x84\xa7call_id\xa9tool_name\xa2id/result\xa7content\xda"
    b"\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa5calls\x01"
    b"\x01\x92\x92\xa9delivered\x81\xa3ids\x91/result\x92\xa5spent\x82\xa4turn\xabmodel_calls\x01"
    b"\x01\x94\x92\xa5spent\x82\xa4turn\xa7seconds\xcb?\x92\xa4said\x86\xa7message\x87\xa2id\xb5"
    b"\xaasession_id\xa6sender\x82\xa4name\xa4kind\xa9assistant\xa5parts\x91\x92\xa4call\x83\xa4name\xa9arguments\x83"
    b"\xa2id\xaacreated_at\xcbA\xda\xaecorrelation_id\xaccausation_id\xb5\xa4stop\xaatool_calls\xa5model\xa5calls\x02"
    b"\xa6prompt\xa8\xa7seconds\xcb?\x92\xa5spent\x84\xa4turn\xa2of\xb5\xaatool_calls\x01\xa7seconds\xcb?"
    b"\x92\xa7started\x81\xa8call_ids\x91"
)
"""Dictionary of the compression. It must never change, since journals on disk need it. Another dictionary needs
another first byte.
"""
_BYTE = bytes([COMPRESSED])
_new = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, _NAMES)
SHORTEST_BYTES = 400
"""Length in bytes from which a body is compressed. A fifth of BFCL's bodies are that long and account for two thirds
of the savings.
"""


def compress(body: bytes) -> bytes:
    """Compress a record body.

    Return the body unchanged if it is short, or if compression does not make it shorter.
    """
    if len(body) < SHORTEST_BYTES:
        return body
    compressor = _new.copy()  # a new one takes twice as long
    made = b"".join((_BYTE, compressor.compress(body), compressor.flush()))
    return made if len(made) < len(body) else body


def expand(body: bytes) -> bytes:
    """Decompress a body that `compress` returned. An uncompressed body is returned unchanged."""
    if body[0] != COMPRESSED:
        return body
    return zlib.decompressobj(-_WINDOW_BITS, _NAMES).decompress(body[1:])
