"""What a person names, found and made ready: a file, a module, an architecture, a folder."""
