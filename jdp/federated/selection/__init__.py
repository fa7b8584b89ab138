"""Private selection: a setting is chosen among several, and the choice is paid for.

Users import from `jdp.federated`.
"""
