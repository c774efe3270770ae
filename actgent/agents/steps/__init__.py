"""The agent that plans and works in steps, and the stream of its events."""
