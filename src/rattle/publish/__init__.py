"""Publishing: a run as a folder that anybody can load, with a model card; its upload to the hub."""
