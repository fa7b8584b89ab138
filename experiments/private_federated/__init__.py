"""Private federated learning: local and central privacy together (arXiv 1812.00984)."""
