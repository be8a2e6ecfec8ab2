"""Publishing: a run as a folder that others can load, with a model card; its upload to the hub."""
