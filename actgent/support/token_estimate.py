"""Estimates how many tokens a text takes, without the tokenizer of its model.

Prose of ASCII letters takes a token for four characters. Numbers, code and encoded data take more tokens, so a long text is
sampled. Text of other letters takes a token for three bytes, which is one Chinese character.
"""

import re

CHARACTERS_A_TOKEN = 4
"""Most ASCII characters that one token is estimated to hold."""
_LONG_CHARACTERS = 200
"""Characters from which on a text is sampled; shorter texts count as prose."""
_SAMPLES = 8
_SAMPLE_CHARACTERS = 200
_PIECES = re.compile(r"[A-Z]?[a-z]{1,8}|[A-Z]{1,3}|\d|[^\sA-Za-z\d]{1,2}|\n *")
"""Pieces into which tokenizers split ASCII text. Some tokenizers, such as Gemini's, take a token for each digit."""
_LEAST_CHARACTERS_A_TOKEN = 1.0
_MAX_CACHED_TEXTS = 10_000
_densities: dict[int, float] = {}
"""Characters a token of long texts, by hash: each request of a conversation repeats the texts of the request before it."""


def estimate_tokens(text: str) -> float:
    """Return the estimated tokens of a text."""
    if not text.isascii():
        return len(text.encode("utf-8", "surrogatepass")) / 3
    if len(text) < _LONG_CHARACTERS:
        return len(text) / CHARACTERS_A_TOKEN
    return len(text) / (_densities.get(hash(text)) or _measure_density(text))


def _measure_density(text: str) -> float:
    """Return the characters a token of a long text, from evenly spread samples, and cache the value."""
    if len(_densities) >= _MAX_CACHED_TEXTS:
        _densities.clear()
    sample = text
    if len(text) > _SAMPLES * _SAMPLE_CHARACTERS:
        last = len(text) - _SAMPLE_CHARACTERS
        starts = [last * number // (_SAMPLES - 1) for number in range(_SAMPLES)]
        sample = "\n".join([text[start : start + _SAMPLE_CHARACTERS] for start in starts])
    pieces = len(_PIECES.findall(sample)) or 1
    found = min(CHARACTERS_A_TOKEN, max(_LEAST_CHARACTERS_A_TOKEN, len(sample) / pieces))
    _densities[hash(text)] = found
    return found
