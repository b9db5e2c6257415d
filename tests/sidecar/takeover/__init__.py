"""What a daemon leaves to its successor: each part alone, and the whole under kills on a real kernel."""
