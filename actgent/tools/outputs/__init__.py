"""Conversion of tool results to the text and media that a model receives."""
