"""Classes of other clients: what their templates come to, and what each client really does."""
