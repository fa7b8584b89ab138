"""The checks of the kit: part -> findings, pure functions.

| part | module |
| --- | --- |
| `Clip`, `Aggregate` | `sensitivity` |
| `Noise` | `noise_covariance` |
| `Sampling` | `inclusion` |
| `Accountant`, `Calibration` | `intervals` |
| `MatrixStrategy` | `participation_patterns` |
| `Release` | `releases` |

Checks that draw take an `error`: the largest probability that they fail a correct implementation.
"""
