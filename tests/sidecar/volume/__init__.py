"""The filesystem `volume`: budgets, and standing still."""
