"""Audits: lower bounds on what a release leaks, proved from what an observer sees.

| subject | module |
| --- | --- |
| from counts to lower bounds on epsilon or mu | `bounds` |
| from scores of two inputs to a bound | `scores` |
| scores that are learned from releases | `learned_scores` |
| bounds that hold whenever one stops | `sequential` |
| canaries by fair coins, one run, against one epsilon | `one_run` |
| the same, against a whole trade-off curve | `one_run_f_dp` |
| canaries among clients or examples | `canaries` |
| reports of local mechanisms | `local_audit` |
| the low-order digits of releases | `residues` |
| exactly, from known output distributions | `channels` |
"""
