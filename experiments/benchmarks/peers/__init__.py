"""The processes that benchmarks time beside each other.

Each module is one process, in the environment that its library needs.
"""
