"""Words of texts and questions. Query operators of a database are never words, so a question cannot contain any."""

import re

from actgent.support.word_normalization import spaced

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
    found = _WORD.findall(spaced(question))
    significant = [word for word in found if word not in _COMMON] or found
    words = list(dict.fromkeys(significant))
    half = MAX_WORDS // 2
    return words if len(words) <= MAX_WORDS else words[:half] + words[-half:]
