"""Search by tokens with weights."""
