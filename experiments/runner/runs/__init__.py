"""What a run does and leaves on disk: training, sweeps, work directories, checkpoints, costs."""
