"""Tests of `manifests/`: that its files agree with each other and with the code. What an API server says of them is in `e2e/tests`."""
