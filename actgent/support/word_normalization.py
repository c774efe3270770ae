"""Normalization of texts for word indexes: `separate_words` separates words by spaces, also in scripts without spaces."""

import re
import unicodedata

_UNSPACED = re.compile(
    "([\u2e80-\u2fdf\u3040-\u30ff\u31c0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
"""Pattern of the characters of scripts without spaces between words. Each character is a separate word."""


def separate_words(text: str) -> str:
    """Normalize a text for the search index: lower case, and spaces around each character of a script without spaces.

    Such scripts are Chinese and Japanese, in which each character becomes a word.
    """
    if text.isascii():
        return text.lower().replace("_", " ")
    return _UNSPACED.sub(r" \1 ", unicodedata.normalize("NFKC", text).casefold().replace("_", " "))
