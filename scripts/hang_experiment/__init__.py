"""The hang study of `scripts/hang_study.py`.

Files in reading order::

study       runs the arms one after another        arm         child process of an arm; can hang
watch       watches an arm from outside            conclusion  result table and its conclusions (pure)
"""
