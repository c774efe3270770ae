"""What several layers need and no subject claims: logs, encodings, taking turns, exceptions of foreign code."""
