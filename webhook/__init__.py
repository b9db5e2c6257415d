"""The admission service: reviews in, verdicts and patches out. No Linux effects."""
