"""Commands for a person's own environments and runs, from any folder. Scripts never import them."""
