"""The C library's directory stream, with positions: Python's has none."""

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NAME = 19  # where d_name begins: inode, position, length, type


_libc.opendir.restype = ctypes.c_void_p
_libc.opendir.argtypes = (ctypes.c_char_p,)
_libc.readdir.restype = ctypes.c_void_p
_libc.readdir.argtypes = (ctypes.c_void_p,)
_libc.telldir.restype = ctypes.c_long
_libc.telldir.argtypes = (ctypes.c_void_p,)
_libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
_libc.rewinddir.argtypes = (ctypes.c_void_p,)
_libc.closedir.argtypes = (ctypes.c_void_p,)


class Stream:
    """An open directory."""

    def __init__(self, path: Path) -> None:
        self._stream = _libc.opendir(os.fsencode(path))
        if not self._stream:
            raise OSError(ctypes.get_errno(), "opendir", str(path))

    def next(self) -> str | None:
        """Return the next name but `.` and `..`, None at the end."""
        while True:
            ctypes.set_errno(0)
            entry = _libc.readdir(self._stream)
            if not entry:
                if number := ctypes.get_errno():
                    raise OSError(number, "readdir")
                return None
            name = ctypes.string_at(entry + _NAME).decode()
            if name not in (".", ".."):
                return name

    def tell(self) -> int:
        """Return where the next entry is."""
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        """Go where `tell` once was."""
        _libc.seekdir(self._stream, position)

    def rewind(self) -> None:
        """Go to the beginning, and see what is there now."""
        _libc.rewinddir(self._stream)

    def close(self) -> None:
        """Close it."""
        _libc.closedir(self._stream)
