"""Functions of a history, for `memory=`: what the model is to be shown of it."""
