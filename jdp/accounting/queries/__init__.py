"""The analyses of jdp's own query events, registered by the call that is public.

| query | module |
|---|---|
| sums, weighted averages, trees, responses, and releases that state what they cost | `releases` |
| runs with correlated noise | `correlated` |
| the best of several runs | `best_of_runs` |
"""

# They register their analyses.
from jdp.accounting.queries import best_of_runs, correlated, releases  # noqa: F401
