"""Life cycle of sessions: create, load, evict, migrate and close."""
