"""The processes that `experiments.benchmarks.cohorts` times.

Each module is one process, in the environment that its library needs.
"""
