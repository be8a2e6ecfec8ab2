"""Publishing: a run as a folder that anybody can load, with a model card, and its upload to the Hugging Face hub."""
