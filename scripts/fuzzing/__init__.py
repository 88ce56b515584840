"""Fuzzing of all readers of files that another person may have written.

`mutation` changes valid files at random, `readers` lists the readers with their valid files, `session` runs a reader on
changed files in a child process with limits of time and memory.
"""
