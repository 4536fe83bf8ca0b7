"""Jobs that write a collection, or split one."""
