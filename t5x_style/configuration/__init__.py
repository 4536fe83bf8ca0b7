"""Gin files: read, checked, renamed, and what parameters they give a job."""
