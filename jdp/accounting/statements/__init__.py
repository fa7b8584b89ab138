"""What else can be stated about a ledger, besides its epsilon and delta.

| subject | module |
|---|---|
| against whom, of what, or why there is no finite epsilon | `privacy_statements` |
| budgets; runs whose events are chosen from earlier releases | `filters` |
| groups of records | `group_privacy` |
| what an attacker gains | `trade_off_curves` |
"""
