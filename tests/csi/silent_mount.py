"""A FUSE mount whose daemon reads nothing: whoever looks into it waits."""

# A program; its argument is the mount point.
MOUNTS_AND_NEVER_ANSWERS = """
import ctypes, os, sys, time
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
assert ctypes.CDLL(None).mount(b"hanging", sys.argv[1].encode(), b"fuse", 0, options) == 0
time.sleep(600)
"""
