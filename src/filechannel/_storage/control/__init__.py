"""The control page and what the processes of a channel share through it: slots, locks, wake FIFOs.

Imports `system`. Start with `control_page`, then `joining`.
"""
