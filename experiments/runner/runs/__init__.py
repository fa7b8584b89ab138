"""What a run does, and what it leaves on disk.

`training`: one run that survives a kill. `sweep`: all runs of an experiment. `workdir`: their
folders, public and secret. `checkpoints`, `params`: states and parameters as files. `costs`: what a
run's ledger says it cost. `progress`: what the terminal shows.
"""
