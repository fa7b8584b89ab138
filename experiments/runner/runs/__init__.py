"""What a run does, and what it leaves on disk.

* `training` does one run, which survives a kill.
* `sweep` does all runs of an experiment.
* `results` keeps what a finished run found, and compares its files with what it left.
* `workdir` makes their public and secret folders.
* `params` keeps parameters as files.
* `costs` states what a run cost by its ledger.
* `kept_rows` keeps results that are computed once.
* `progress` is what the terminal shows.
"""
