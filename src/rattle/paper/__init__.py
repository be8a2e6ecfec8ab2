"""The paper's tables: as data, and run and printed beside the published numbers."""
