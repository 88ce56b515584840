"""Readers of annotations in the layouts of other tools, and the writer of the layout with a data.yaml."""
