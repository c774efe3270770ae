"""Models round others, which do one thing more: they keep answers, wait for a governor, or ask again."""
