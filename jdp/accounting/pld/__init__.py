"""Privacy loss distributions: the composition of dominating pairs on a grid of losses."""
