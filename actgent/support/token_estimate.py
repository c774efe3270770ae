"""Estimated number of tokens of a text, without the tokenizer of the model.

ASCII prose has about four characters per token. Numbers, code and encoded data have fewer, so a long text is sampled. Other
text has about three UTF-8 bytes per token, which is one Chinese character.
"""

import re

MAX_CHARS_PER_TOKEN = 4
"""Maximum of the estimated ASCII characters per token."""
_MIN_SAMPLED_CHARS = 200
"""Length from which a text is sampled; shorter texts count as prose."""
_SAMPLES = 8
_SAMPLE_CHARS = 200
_PIECES = re.compile(r"[A-Z]?[a-z]{1,8}|[A-Z]{1,3}|\d|[^\sA-Za-z\d]{1,2}|\n *")
"""Pattern of the pieces into which tokenizers split ASCII text. Some tokenizers, e.g. Gemini's, use one token per
digit.
"""
_MIN_CHARS_PER_TOKEN = 1.0
_MAX_CACHED_TEXTS = 10_000
_densities: dict[int, float] = {}
"""Cached characters per token of long texts, by the hash of the text. Each request repeats the texts of the previous
one.
"""


def estimate_tokens(text: str) -> float:
    """Estimate the number of tokens of a text from its length and kind of characters, without a tokenizer."""
    if not text.isascii():
        return len(text.encode("utf-8", "surrogatepass")) / 3
    if len(text) < _MIN_SAMPLED_CHARS:
        return len(text) / MAX_CHARS_PER_TOKEN
    return len(text) / (_densities.get(hash(text)) or _measure_density(text))


def _measure_density(text: str) -> float:
    """Estimate the number of characters per token of a long text from evenly spaced samples. The value is cached."""
    if len(_densities) >= _MAX_CACHED_TEXTS:
        _densities.clear()
    sample = text
    if len(text) > _SAMPLES * _SAMPLE_CHARS:
        last = len(text) - _SAMPLE_CHARS
        starts = [last * number // (_SAMPLES - 1) for number in range(_SAMPLES)]
        sample = "\n".join([text[start : start + _SAMPLE_CHARS] for start in starts])
    pieces = len(_PIECES.findall(sample)) or 1
    density = min(MAX_CHARS_PER_TOKEN, max(_MIN_CHARS_PER_TOKEN, len(sample) / pieces))
    _densities[hash(text)] = density
    return density
