"""A run from its first round to its last: the loop, and what it leaves on disk.

Users import from `jdp.federated`.
"""
