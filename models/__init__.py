"""Networks, losses and objectives."""
