"""Parts of `scripts/hang_study.py`.

arm         child process of an arm; can hang
watch       watches an arm from outside
conclusion  result table and its conclusions (pure functions)
"""
