"""What runs in the pod: keeper entry, daemon entry, built-in filesystems."""
