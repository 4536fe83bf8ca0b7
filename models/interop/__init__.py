"""Import from and export to the layouts of Hugging Face."""
