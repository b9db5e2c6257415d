"""Applications: each works on a mounted directory, knows what it must find there, and says what is wrong. They know nothing of daemons."""
