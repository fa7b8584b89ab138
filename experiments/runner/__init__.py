"""The runner that all experiments share.

`options`: a dataclass whose fields are flags. `launch`: the body of a binary. `workdir`, `files`:
what is on disk. `training`: one run that survives a kill. `sweep`: all runs of an experiment. `costs`: guarantees
from ledgers. `statistics`, `reports`, `parts`, `plots`, `progress`: what people read. `federation`: options of
federated training. `prior`: what was released before. `params`: parameters as files. `task`: what there is to learn;
`tasks`: which, images (`classification`) or text by user (`text`), whose words may be counted (`private_words`).
"""
