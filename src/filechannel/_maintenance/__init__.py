"""Work on stored data that needs no channel object: it is done in the background, or with nothing open."""
