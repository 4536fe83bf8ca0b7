"""What is masked, removed or replaced before a loss."""
