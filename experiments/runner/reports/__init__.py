"""What people read.

* `parts` is the report of every experiment.
* `tables` and `plots` make the contents of its parts; `style` says how plots look.
* `statements` makes its statements of privacy.
* `summary` merges the results of a sweep.
* `statistics` computes means with intervals.
"""
