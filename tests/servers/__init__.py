"""Tests of the object-store servers and of the fault proxy."""
