"""The field's standard federated data sets, in the formats that they are distributed in.

| set | distributed as | reader |
|---|---|---|
| FEMNIST | LEAF's JSON files, TensorFlow Federated's SQLite file | `femnist` |
| StackOverflow | TensorFlow Federated's SQLite file | `stackoverflow` |

Users import from `jdp.data`. No package beyond jdp's own is needed.
"""
