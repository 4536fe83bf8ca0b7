"""Re-rankers in searches and servers: pairs of a question and a passage, and their scores."""
