"""The command `report`: a run folder, or a comparison of several, as one HTML file, read from their files only."""
