"""Commands for your environments and your runs."""
