"""The torture in its short form, and tests of what measures it."""
