"""The engine of all training procedures: rounds, sums over a cohort, local training.

Users import from `jdp.federated`.
"""
