"""Measurements of speed, side by side with a baseline or a peer, on one harness."""
