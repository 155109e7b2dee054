"""Channels, senders, receivers, services and transactions, and the schema of their messages."""
