"""The filesystem `volume`: a provisioned volume, which is a directory under a budget that all its mounts share.

Belongs here: what a budget adds to the filesystem `directory`, which stays what it is. Does not: the budget's file itself
(`sidemount.host.budget_file`), because whoever owns the pool reads and writes it as well.
"""
