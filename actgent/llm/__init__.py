"""Model clients: one interface, whatever wire a provider speaks."""
