"""Processes that run next to a stage: what runs them, and how they read the stage."""
