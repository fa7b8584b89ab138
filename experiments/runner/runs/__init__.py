"""What a run does, and what it leaves on disk.

* `training` does one run, which survives a kill.
* `sweep` does all runs of an experiment.
* `results` keeps what a finished run found, and compares its files with what it left.
* `workdir` makes their public and secret folders.
* `costs` states what a run cost by its ledger; `finished_ledgers` reads it again.
* `layouts` keeps what `--layout=fastest` measured.
* `sweep_parts` cuts a sweep, and `merging` puts its parts together.
* `kept_rows` keeps results that are computed once.
* `progress` is what the terminal shows.
"""
