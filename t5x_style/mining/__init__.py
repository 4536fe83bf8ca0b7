"""Hard negatives, and scores of pairs."""
