"""Whether anybody looks at the files of a directory that is being listed, or only wants their names.

`ls -l` asks for every file that it has read the name of, `find` for none. The attributes of all of them come with the listing for little, each by itself
costs a request; but whoever does not want them should not wait for them. The kernel has the same rule for filesystems that leave the
choice to it (fs/fuse/readdir.c, fuse_use_readdirplus); pyfuse3 makes it always ask for attributes, so the choice is made here.
"""

_MOST = 4096


class Interest:
    """The directories with a file that somebody has asked for since they were last listed. For any thread; a guess, so it may forget."""

    def __init__(self) -> None:
        self._asked: set[int] = set()

    def note(self, directory: int) -> None:
        """Note that a file of a directory was asked for."""
        if len(self._asked) >= _MOST:
            self._asked.clear()
        self._asked.add(directory)

    def take(self, directory: int) -> bool:
        """Tell whether a file of a directory was asked for since this was last called."""
        if directory not in self._asked:
            return False
        self._asked.discard(directory)
        return True
