"""Verbs of the command line: one a file; each parses, calls one library function, and prints."""
