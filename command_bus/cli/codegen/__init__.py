"""Generated client classes."""
