"""Processes that run next to a stage: how they are run, and how they read the stage."""
