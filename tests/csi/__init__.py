"""Tests of the CSI services."""
