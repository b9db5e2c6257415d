"""The certificate authority and the serving certificate of the admission service."""
