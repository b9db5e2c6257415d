"""How a command reaches a cluster, with the rights of whoever calls it: no decisions, no output."""
