"""What a run cost: epsilon and delta of a ledger, and the closed forms that mechanisms state their guarantees with."""

from jdp.accounting.accountant import delta, epsilon
from jdp.accounting.calibration import calibrate_noise_multiplier
from jdp.accounting.local import local_guarantee
from jdp.accounting.rdp import rdp_subsampled_gaussian

__all__ = ["calibrate_noise_multiplier", "delta", "epsilon", "local_guarantee", "rdp_subsampled_gaussian"]
