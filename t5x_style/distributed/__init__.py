"""Meshes, collectives, and how several processes start, meet and fail together."""
