"""Where heads look: the view, its page, picture and terminal; and the alignment of translations."""
