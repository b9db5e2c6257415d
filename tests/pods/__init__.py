"""Pods from their manifest through the webhook's own code to their applications, on podlet. What the application sees is what is tested."""
