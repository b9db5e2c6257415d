"""Torture: applications verify every byte while the processes that serve them are killed, stopped and replaced.

Belongs here: what stages that on the machine it runs on, in namespaces of its own, and measures it. Does not: tests of parts.
"""
