"""Rankings, their metrics and their significance; evaluations during training."""
