"""Model clients: one interface for the APIs of all providers."""
