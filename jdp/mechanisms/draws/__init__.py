"""How mechanisms sample: cap heights, agreements with a vertex, truncated tails and projections."""
