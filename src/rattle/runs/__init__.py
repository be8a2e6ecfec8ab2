"""Run folders: their layout, files, locks and checkpoints; and ranks, which share one."""
