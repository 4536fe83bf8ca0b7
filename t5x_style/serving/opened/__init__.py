"""An open version of a bundle, which answers requests."""
