"""Sums whose noise the clients add: in floats, in integers, and who adds how much."""
