"""`prepare`: pack frames into a store, verify a store, or check a dataset."""
