"""Long-term memories of owners, found by words, by vectors, and by importance and last use."""
