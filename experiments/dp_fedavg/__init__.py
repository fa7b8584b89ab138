"""Federated averaging with user-level privacy: DP-FedAvg, DP-FedSGD, and DP-SGD (arXiv
1710.06963).
"""
