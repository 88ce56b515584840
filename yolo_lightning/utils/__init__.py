"""Helpers shared by several rooms: files, distributed processes, host, device choices, sensors, loop position."""
