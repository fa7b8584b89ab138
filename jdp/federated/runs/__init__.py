"""Training runs: the loop, and what it leaves on disk.

Users import from `jdp.federated`.
"""
