"""The runner that all experiments share.

`launch`: the body of a binary. `options`: a dataclass whose fields are flags; `federation`: those
of federated training. `problems`: what there is to learn, and from whom. `runs`: training, sweeps,
and what they leave on disk. `reports`: what people read. `files`: files that are whole or absent.
`estimators`: local mechanisms for unit vectors; `published_language_models`: what others have
published and what it cost.
"""
