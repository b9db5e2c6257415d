"""What a daemon's exit codes mean. 0: everything is served, flushed and ended. An external client's own code is passed on; 2 is argparse's."""

DEFECT = 1  # of ours
NOT_STARTED = 3
NOT_FLUSHED = 4
