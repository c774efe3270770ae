"""The sessions of agents at work: which there are, and how they begin, come back and end."""
