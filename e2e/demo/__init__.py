"""The demo: a pod from its annotation to its files, on this machine. Each module is one part of the stage; nothing here is product code."""
