"""Subscriptions to sessions: records and observations as gapless streams that resume from a cursor."""
