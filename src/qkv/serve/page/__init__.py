"""The page: a model drawn from its own structure, with every quantity of a pass open to look at."""
