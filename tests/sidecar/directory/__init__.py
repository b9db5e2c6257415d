"""Tests of the `directory` filesystem, most of them on a real kernel mount."""
