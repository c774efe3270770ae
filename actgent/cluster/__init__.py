"""Clusters of nodes: PostgreSQL records the owner of each session, and nodes relay requests to the owner over HTTP."""
