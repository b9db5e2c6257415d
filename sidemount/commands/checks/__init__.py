"""What `sidemount doctor --cluster` looks at: readings of the API server in, findings out. Pure, but for who reads."""
