"""Applications for the pods of these tests: standard library only, given to a container's interpreter as text."""
