"""What an examination found, and every form in which it is told. Imports no torch."""
