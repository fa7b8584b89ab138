"""Training with noise by the clients, some of whom vanish.

The modules model who vanishes, train under dropout, and sum under masks.
"""

from jdp.federated.dropout.dropout_models import bursty, by_size, independent, with_calibrations

__all__ = ["bursty", "by_size", "independent", "with_calibrations"]
