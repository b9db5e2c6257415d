"""The CSI identity, controller and node services. Nothing of the webhook or the sidecar."""
