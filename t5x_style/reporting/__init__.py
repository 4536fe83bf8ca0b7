"""Parts of the pages that report commands write."""
