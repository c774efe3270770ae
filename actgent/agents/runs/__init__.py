"""Runs of an agent: send a message, wait for the answer, stream the deliveries, forward to other processes."""
