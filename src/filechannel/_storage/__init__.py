"""Files and maps: what is on disk and how it stays whole. Knows nothing of event loops, types or codecs."""
