"""The runner that all experiments share.

* `launch` is the body of a binary.
* `options` has dataclasses whose fields are flags; `checks` bounds many of them, and `help_text` is
  their `--help`.
* `federation` has the options of federated training.
* `problems` says what there is to learn and from whom.
* `runs` trains and sweeps, and keeps the results on disk.
* `reports` writes what people read.
* `files` writes files that are whole or absent.
* `keys` makes the keys of single measurements.
* `estimators` holds local mechanisms for unit vectors.
* `published_language_models` states what published models cost.
"""
