"""Event streams of the gateway: server-sent events of sessions, observations and changes."""
