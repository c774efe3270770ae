"""How an agent and a model talk: prompt templates, each with the classifier that belongs to it."""
