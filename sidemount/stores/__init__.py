"""Object stores: the port to one (`store`), and what implements it for each protocol over the standard library's HTTP.

Knows nothing of filesystems: a daemon and a controller use it alike.
"""
