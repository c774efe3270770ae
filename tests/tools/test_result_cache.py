"""actgent.tools.outputs.result_text: a bounded cache of results by arguments."""

from actgent.tools.outputs.result_text import ResultCache, canonical_json


def test_canonical_ignores_order_but_no_type():
    """Order has no effect. 1, 1.0, true and "1" are four different arguments."""
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})
    assert len({canonical_json({"a": value}) for value in (1, 1.0, True, "1")}) == 4


def test_least_recently_used_result_is_evicted():
    """The cache evicts the least recently used result. A lookup counts as a use."""
    cache = ResultCache(2)
    cache.put("a", "1")
    cache.put("b", "2")
    assert cache.get("a") == "1"
    cache.put("c", "3")
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == ("1", None, "3", 2)
