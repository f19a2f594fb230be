"""Where examples come from: one reader for each kind of file."""
