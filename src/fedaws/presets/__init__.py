"""One TOML per experiment, each holding only its differences from the defaults."""
