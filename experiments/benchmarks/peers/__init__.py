"""What `experiments.benchmarks.cohorts` times: each module is a process, in the environment that
its library needs.
"""
