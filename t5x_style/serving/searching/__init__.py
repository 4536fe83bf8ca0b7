"""Search of the passages of one open version of a bundle."""
