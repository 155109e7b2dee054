"""Who is told that something changed."""
