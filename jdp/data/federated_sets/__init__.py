"""The standard federated data sets of the literature, in the formats in which they are distributed.

| set | distributed as | reader |
|---|---|---|
| FEMNIST | LEAF's JSON files, TensorFlow Federated's SQLite file | `femnist` |
| StackOverflow | TensorFlow Federated's SQLite file | `stackoverflow` |

Users import from `jdp.data`. No package beyond jdp's own is needed.
"""
