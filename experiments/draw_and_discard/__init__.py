"""Draw and Discard: a server of k model instances and locally private clients (arXiv
1807.04369).
"""
