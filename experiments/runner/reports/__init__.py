"""What people read.

`parts`: the report of every experiment. `tables`, `plots`: what its parts consist of. `statements`:
what they say of privacy. `summary`: the results of a sweep, merged. `statistics`: means with
intervals.
"""
