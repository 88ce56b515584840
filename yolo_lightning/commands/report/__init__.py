"""The command `report`: a run folder as one HTML file, read from its files only."""
