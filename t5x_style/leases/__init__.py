"""Leases on what several processes want to write: in local files, or on object storage."""
