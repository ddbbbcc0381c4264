"""From what a person names to a model: a file, a module, an architecture, a folder."""
