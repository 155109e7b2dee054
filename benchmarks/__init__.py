"""Measurements of filechannel against things everybody knows: `python -m benchmarks --help`."""
