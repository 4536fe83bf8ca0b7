"""The engine: it knows no objective and no data set, by name or by feature."""
