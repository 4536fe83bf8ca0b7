"""What fine-tuning a published encoder adds to a training: a verdict, and how much to keep."""
