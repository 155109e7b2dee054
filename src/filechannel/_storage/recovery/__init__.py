"""Creating a channel, deciding whether its control page can be trusted, and finding the valid end of its log.

Imports `consumers`, `producers`, `reading` and what is below them. Start with `recover`.
"""
