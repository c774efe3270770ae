"""What comes of a call, as a model reads it."""
