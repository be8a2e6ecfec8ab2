"""Evaluation: attacks on images, every point re-checked, results as files."""
