"""Queries with passages that answer them, in the layouts of several libraries, as a collection."""
