"""Token vectors in less space: fewer of them, and of fewer bytes."""
