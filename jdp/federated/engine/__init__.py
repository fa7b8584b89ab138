"""What runs every training procedure: rounds, the cohort's sum over chunks and devices, local
training.

Users import from `jdp.federated`.
"""
