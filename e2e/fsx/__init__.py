"""Random file operations against a shadow model: `python -m e2e.fsx --dir D --seconds N --seed S`.

Belongs here: what an application may do to files, and what it must then see. Does not: mounting, killing, measuring.
"""
