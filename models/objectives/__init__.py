"""One objective a file; none imports another."""
