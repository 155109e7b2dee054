"""The capacity of a channel: how much more may be sent, the backlog, and fairness between waiting processes.

Imports `reading`, `consumers` and what is below them. Start with `reserve_or_drop_oldest`.
"""
