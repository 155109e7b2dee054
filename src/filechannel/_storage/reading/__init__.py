"""Reading the log: lookup by offset, sequence or time, reading forward, and the record walk past damage.

Imports `segments`, `consumers` and what is below them. Start with `log_reader`.
"""
