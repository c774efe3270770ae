"""Agents at work: who runs when, and where sessions come from."""
