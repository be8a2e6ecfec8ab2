"""Recipes: every hyper-parameter of a run as one frozen value, and the named ones."""
