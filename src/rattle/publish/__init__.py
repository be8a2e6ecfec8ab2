"""Publishing: what a finished run hands to other people's sites."""
