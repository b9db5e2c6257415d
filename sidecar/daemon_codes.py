"""What a daemon's exit codes mean. 0: everything is served, flushed and ended. An external client's own code is passed on."""

DEFECT = 1  # of ours
USAGE = 2
NOT_STARTED = 3
NOT_FLUSHED = 4
