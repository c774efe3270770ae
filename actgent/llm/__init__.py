"""Model clients: one interface, whatever API a provider has."""
