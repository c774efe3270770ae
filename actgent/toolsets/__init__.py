"""Toolsets: named groups of tools whose connection follows their agents, and tools for external systems."""
