"""Games that a decision model can play."""
