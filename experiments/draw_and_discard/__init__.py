"""Draw and Discard: k model instances and locally private clients (arXiv 1807.04369)."""
