"""`prepare`: pack frames into a store, verify a store, or summarise a dataset."""
