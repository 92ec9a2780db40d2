"""Packages compiled ahead of time: `export` makes one, `load` runs it in a process that compiles nothing."""
