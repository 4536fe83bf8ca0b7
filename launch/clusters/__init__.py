"""Runs on clusters: JobSets of GKE, their rules, and the same run for other launchers."""
