"""Utilities for all layers: logs, encodings, fair queues, and exceptions of user code."""
