"""Benchmarks of filechannel against well-known alternatives: `python -m benchmarks --help`."""
