"""Correlated noise in federated averaging: strategies at equal epsilon (arXiv 2306.08153)."""
