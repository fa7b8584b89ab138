"""Federated averaging with user-level privacy: DP-FedAvg, DP-FedSGD, DP-SGD (arXiv 1710.06963)."""
