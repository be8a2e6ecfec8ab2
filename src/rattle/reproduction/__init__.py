"""The paper's tables, run and printed beside the published numbers (`rattle paper`)."""
