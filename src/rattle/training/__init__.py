"""Training: the step (Algorithm 1), the loop around it, and what survives an interruption."""
