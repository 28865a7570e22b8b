"""How data sets lie on disk: a module per layout, each with one function that reads the cases of a completed configuration."""
