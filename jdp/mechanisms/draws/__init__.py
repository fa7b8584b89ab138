"""How mechanisms sample: heights of caps, vertices of the cube, truncated tails, projections."""
