"""Plans of rows and steps, and batches made from them."""
