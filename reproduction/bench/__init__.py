"""Benchmarks: training steps, PGD-20 and AutoAttack's parts beside plain references and the convolutions' own limit."""
