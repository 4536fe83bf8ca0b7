"""Exported programs, bundles of them with indexes and passages, and what a server asks of these."""
