"""What an application sees when something fails: the table of the design, row by row, on podlet. What a row's pod is made of is in `tests.pods`."""
