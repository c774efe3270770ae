"""Calls of a turn: of models and of tools, with what they cost, how far they are and whom they ask."""
