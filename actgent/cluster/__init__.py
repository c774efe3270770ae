"""Several machines: PostgreSQL says who owns a session, and HTTP carries requests to the owner."""
