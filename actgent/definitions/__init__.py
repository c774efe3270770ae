"""Agents defined by folders of text files: read, validate and create such folders."""
