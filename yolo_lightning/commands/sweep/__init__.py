"""Which confidence and overlap score best: the network looks once at each frame, all settings are tried on that."""
