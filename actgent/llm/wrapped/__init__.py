"""Models made of others: of functions and objects without the base class, and of models that are asked again."""
