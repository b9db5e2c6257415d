"""Linux and process effects: syscalls, mounting, descriptor passing, reading manifests. No service logic."""
