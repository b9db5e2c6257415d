"""What the services agree on. No service code, no re-exports."""
