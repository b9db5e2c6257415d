"""Pure values and decisions. No I/O, clock, environment, randomness, logging or async."""
