"""The analyses of jdp's own query events, registered by the call that is public.

| query | module |
|---|---|
| sums with noise by the server, groups of them, weighted averages, trees | `sums` |
| sums with noise by the records' owners | `by_owners` |
| responses, releases that state what they cost, and unprotected ones | `releases` |
| runs with correlated noise | `correlated` |
| the best of several runs | `best_of_runs` |
"""

from jdp.accounting.queries import best_of_runs, by_owners, correlated, releases, sums

__all__ = ["best_of_runs", "by_owners", "correlated", "releases", "sums"]
