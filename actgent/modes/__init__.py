"""Modes of an agent: the allowed tools in each phase of its work, and the actors that may switch between modes."""
