"""Gin files: reading, checks, renames, and the parameters that they give a job."""
