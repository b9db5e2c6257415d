"""What POSIX says about single calls, in the manner of pjdfstest: each script gives the same outcomes on the bare directory and on the mount.

Requirements: S4-37 (users of different ids), S4-39 (chown and chmod through the mount).
"""

import pytest

from tests.sidecar.directory.conftest import Twins
from tests.sidecar.directory.posix_script import expected, run_script

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.root,
    pytest.mark.parametrize("volume", ["trio-local", "poll-remote"], indirect=True, scope="module"),
]

CHMOD = """
create f 0644; chmod f 0111; stat f mode = 0111
create f 0644; chmod f 7777; stat f mode = 7777
mkdir d 0755; chmod d 1777; stat d mode = 1777
mkfifo p 0644; chmod p 0600; stat p mode = 0600
mksock s 0644; chmod s 0600; stat s mode = 0600
create f 0644; symlink f l; chmod l 0600; stat f mode = 0600
chmod missing 0600 = ENOENT
create f 0644; chmod f/x 0600 = ENOTDIR
chmod n*256 0600 = ENAMETOOLONG
symlink l l; chmod l 0600 = ELOOP
create f 0644; u65534:65534 chmod f 0600 = EPERM; stat f mode = 0644
create f 0644; chown f 65534 65534; u65534:65534 chmod f 0600; stat f mode = 0600
create f 0644; chown f 65534 65533; u65534:65534 chmod f 2755; stat f mode = 0755
create f 0644; chown f 65534 65533; u65534:65534,65533 chmod f 2755; stat f mode = 2755
create f 0644; chown f 65534 65534; u65534:65534 chmod f 4755; stat f mode = 4755
create f 0644; chown f 65534 65534; u65534:65534 chmod f 1644; stat f mode = 1644
mkdir d 0755; chown d 65534 65533; u65534:65534 chmod d 2755; stat d mode = 0755
mkdir d 0755; create d/f 0644; chmod d 0000; u65534:65534 chmod d/f 0600 = EACCES
create f 0644; changes ctime f chmod f 0600 = newer
create f 0644; changes mtime f chmod f 0600 = same
"""

CHOWN = """
create f 0644; chown f 123 456; stat f uid gid = 123,456
create f 0644; chown f 123 -1; stat f uid gid = 123,0
create f 0644; chown f -1 456; stat f uid gid = 0,456
create f 0644; chown f -1 -1; stat f uid gid = 0,0
mkdir d 0755; chown d 123 456; stat d uid gid = 123,456
mkfifo p 0644; chown p 123 456; stat p uid gid = 123,456
create f 0644; symlink f l; lchown l 123 456; stat l uid gid = 123,456; stat f uid gid = 0,0
create f 0644; symlink f l; chown l 123 456; stat f uid gid = 123,456
symlink missing l; lchown l 123 456; stat l uid = 123
create f 0644; chmod f 6755; chown f 123 456; stat f mode = 0755
create f 0644; chmod f 6755; chown f -1 -1; stat f mode = 0755
create f 0644; chmod f 2644; chown f 123 456; stat f mode = 2644
mkdir d 0755; chmod d 6755; chown d 123 456; stat d mode = 6755
create f 0644; u65534:65534 chown f 65534 65534 = EPERM
create f 0644; chown f 65534 65534; u65534:65534 chown f 65533 65534 = EPERM
create f 0644; chown f 65534 65534; u65534:65534 chown f -1 65533 = EPERM
create f 0644; chown f 65534 65534; u65534:65534,65533 chown f -1 65533; stat f gid = 65533
create f 0644; chmod f 6755; chown f 65534 65534; chmod f 6755; u65534:65534,65533 chown f -1 65533; stat f mode = 0755
create f 0644; chown f 65534 65534; u65534:65534 chown f 65534 65534
create f 0644; chown f 4000000000 4000000001; stat f uid gid = 4000000000,4000000001
chown missing 0 0 = ENOENT
mkdir d 0700; create d/f 0644; u65534:65534 chown d/f 65534 65534 = EACCES
create f 0644; changes ctime f chown f 1 1 = newer
"""

CREATE = """
open f O_CREAT|O_WRONLY 0640; stat f mode = 0640
open f O_CREAT|O_WRONLY 7777; stat f mode = 7777
open f O_CREAT|O_WRONLY 0000; stat f mode = 0000
umask 077; open f O_CREAT|O_WRONLY 0666; stat f mode = 0600
umask 022; mkdir d 0777; stat d mode = 0755
umask 027; mkfifo p 0666; stat p mode = 0640
create f 0644; open f O_CREAT|O_EXCL|O_WRONLY 0644 = EEXIST
symlink missing l; open l O_CREAT|O_EXCL|O_WRONLY 0644 = EEXIST
symlink target l; open l O_CREAT|O_WRONLY 0644; stat target type = 10
mkdir d 0755; open d O_CREAT|O_WRONLY 0644 = EISDIR
mkdir d 0777; u1000:1000 create d/f 0644; stat d/f uid gid = 1000,1000
mkdir d 0777; u1000:1000 mkdir d/e 0755; stat d/e uid gid mode = 1000,1000,0755
mkdir d 0777; u1000:1000 symlink x d/l; stat d/l uid gid = 1000,1000
mkdir d 0777; u1000:1000 mkfifo d/p 0644; stat d/p uid gid = 1000,1000
mkdir d 0777; u1000:1000 mksock d/s 0644; stat d/s uid gid type = 1000,1000,14
mkdir d 0777; u1000:1000 open d/f O_CREAT|O_WRONLY 4755; stat d/f mode uid = 4755,1000
mkdir d 0777; u1000:1000 open d/f O_CREAT|O_WRONLY 2755; stat d/f mode gid = 2755,1000
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000 create d/f 0644; stat d/f uid gid = 1000,65533
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000 mkdir d/e 0755; stat d/e gid mode = 65533,2755
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000 open d/f O_CREAT|O_WRONLY 2755; stat d/f gid mode = 65533,0755
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000,65533 open d/f O_CREAT|O_WRONLY 2755; stat d/f gid mode = 65533,2755
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000 mkfifo d/p 0644; stat d/p gid = 65533
mkdir d 0777; chown d 0 65533; chmod d 2777; u1000:1000 symlink x d/l; stat d/l gid = 65533
mkdir d 0777; chmod d 2777; u1000:1000 create d/f 0644; stat d/f uid gid = 1000,0
mkdir d 0755; u1000:1000 create d/f 0644 = EACCES
mkdir d 0755; u1000:1000 mkdir d/e 0755 = EACCES
mkdir d 0755; u1000:1000 mkfifo d/p 0644 = EACCES
mkdir d 0755; u1000:1000 symlink x d/l = EACCES
create f 0644; mkdir f 0755 = EEXIST
mkdir d 0755; mkdir d 0755 = EEXIST
mkfifo p 0644; mkfifo p 0644 = EEXIST
symlink a l; symlink b l = EEXIST
symlink missing l; mkdir l 0755 = EEXIST
mkdir missing/d 0755 = ENOENT
create missing/f 0644 = ENOENT
symlink x missing/l = ENOENT
create f 0644; mkdir f/d 0755 = ENOTDIR
create f 0644; create f/x 0644 = ENOTDIR
mkdir n*255 0755; stat n*255 type = 4; rmdir n*255
mkdir n*256 0755 = ENAMETOOLONG
create n*256 0644 = ENAMETOOLONG
symlink x n*256 = ENAMETOOLONG
mkfifo n*256 0644 = ENAMETOOLONG
symlink t*1000 l; stat l size type = 1000,12
symlink t*4095 l; stat l size = 4095
symlink t*4096 l = ENAMETOOLONG
symlink x l; readlink l = x
create f 0644; readlink f = EINVAL
changes mtime . create f 0644 = newer
changes mtime . mkdir d 0755 = newer
"""

LINK = """
create f 0644 abc; link f g; read g = abc; stat f nlink = 2; same f g = same
create f 0644; link f g; unlink f; stat g nlink = 1
create f 0644; link f g; link g h; stat f nlink = 3; unlink g; stat h nlink = 2
create f 0644; link f g; chmod g 0600; stat f mode = 0600
create f 0644 abc; link f g; truncate g 1; stat f size = 1
symlink t l; link l m; readlink m = t; stat l nlink = 2
mkfifo p 0644; link p q; stat q type nlink = 1,2
mkdir d 0755; link d e = EPERM
create f 0644; create g 0644; link f g = EEXIST
create f 0644; mkdir d 0755; link f d = EEXIST
create f 0644; symlink x l; link f l = EEXIST
link missing g = ENOENT
create f 0644; link f missing/g = ENOENT
create f 0644; link f f/g = ENOTDIR
create f 0644; link f n*256 = ENAMETOOLONG
create f 0666; mkdir d 0755; u1000:1000 link f d/g = EACCES
create f 0644; changes ctime f link f g = newer
create f 0644; mkdir d 0755; link f d/g; rename f d/f; same d/f d/g = same
"""

RENAME = """
create f 0644 abc; rename f g; read g = abc; stat f type = ENOENT
create f 0644 abc; create g 0644 xyz; rename f g; read g = abc; list . = g
create f 0644; rename f f; list . = f
create f 0644; link f g; rename f g; list . = f,g; stat f nlink = 2
mkdir d 0755; create d/f 0644 abc; rename d e; read e/f = abc
mkdir d 0755; mkdir e 0755; rename d e; list . = e
mkdir d 0755; mkdir e 0755; create e/f 0644; rename d e = ENOTEMPTY
mkdir d 0755; create f 0644; rename d f = ENOTDIR
mkdir d 0755; create f 0644; rename f d = EISDIR
mkdir d 0755; mkdir d/e 0755; rename d d/e/x = EINVAL
mkdir d 0755; mkdir d/e 0755; rename d/e d = ENOTEMPTY
mkdir d 0755; rename d d/e = EINVAL
rename missing g = ENOENT
create f 0644; rename f missing/g = ENOENT
create f 0644; create g 0644; rename f g/x = ENOTDIR
create f 0644; rename f n*256 = ENAMETOOLONG
create f 0644; symlink x l; rename f l; stat l type = 10
symlink x l; create f 0644; rename l f; readlink f = x
mkdir a 0755; mkdir b 0755; create a/f 0644 abc; rename a/f b/g; read b/g = abc; list a = nothing
mkdir a 0755; mkdir b 0755; mkdir a/d 0755; rename a/d b/d; stat a nlink = 2; stat b nlink = 3
create f 0644 abc; create g 0644 xyz; exchange f g; read f = xyz; read g = abc
create f 0644 abc; mkdir d 0755; create d/x 0644 inner; exchange f d; read d = abc; read f/x = inner
mkdir a 0755; mkdir b 0755; create a/f 0644 abc; create b/g 0644 xyz; exchange a/f b/g; read a/f = xyz; read b/g = abc
create f 0644; exchange f missing = ENOENT
create f 0644 abc; noreplace f g; read g = abc
create f 0644; create g 0644; noreplace f g = EEXIST
create f 0644; link f g; noreplace f g = EEXIST
mkdir d 0755; mkdir e 0755; noreplace d e = EEXIST
create f 0644; mkdir d 0755; u1000:1000 rename f d/g = EACCES
mkdir d 1777; create d/f 0644; u1000:1000 rename d/f d/g = EPERM
mkdir d 1777; create d/f 0644; mkdir e 0777; u1000:1000 create e/g 0644; u1000:1000 rename e/g d/f = EPERM
mkdir d 0777; create d/f 0644; u1000:1000 rename d/f d/g
create f 0644; changes ctime . rename f g = newer
mkdir a 0755; mkdir a/b 0755; mkdir a/b/c 0755; create a/b/c/f 0644 deep; rename a/b z; read z/c/f = deep; create z/c/g 0644 more; read z/c/g = more
"""

REMOVE = """
create f 0644; unlink f; list . = nothing
create f 0644; unlink f; unlink f = ENOENT
mkdir d 0755; rmdir d; list . = nothing
mkdir d 0755; unlink d = EISDIR
create f 0644; rmdir f = ENOTDIR
symlink x l; rmdir l = ENOTDIR
symlink x l; unlink l; list . = nothing
mkdir d 0755; symlink d l; rmdir l = ENOTDIR
mkfifo p 0644; unlink p; list . = nothing
mksock s 0644; unlink s; list . = nothing
mkdir d 0755; create d/f 0644; rmdir d = ENOTEMPTY
mkdir d 0755; rmdir d/. = EINVAL
mkdir d 0755; mkdir d/e 0755; rmdir d/e/.. = ENOTEMPTY
rmdir missing = ENOENT
unlink missing = ENOENT
create f 0644; unlink f/x = ENOTDIR
unlink n*256 = ENAMETOOLONG
rmdir n*256 = ENAMETOOLONG
mkdir d 0755; create d/f 0666; u1000:1000 unlink d/f = EACCES
mkdir d 1777; create d/f 0666; u1000:1000 unlink d/f = EPERM
mkdir d 1777; u1000:1000 create d/f 0644; u1001:1001 unlink d/f = EPERM; u1000:1000 unlink d/f
mkdir d 1777; mkdir d/e 0777; u1000:1000 rmdir d/e = EPERM
mkdir d 0777; create d/f 0600; u1000:1000 unlink d/f
create f 0644; link f g; changes ctime g unlink f = newer
create f 0644; changes mtime . unlink f = newer
mkdir d 0755; changes mtime . rmdir d = newer
create f 0644; write_unlinked f f = beforeafter,0,11
create f 0644; link f g; write_unlinked f g = beforeafter,1,11
"""

OPEN = """
create f 0600 abc; u1000:1000 open f O_RDONLY = EACCES
create f 0644 abc; u1000:1000 open f O_RDONLY; u1000:1000 open f O_WRONLY = EACCES
create f 0622 abc; u1000:1000 open f O_WRONLY; u1000:1000 open f O_RDONLY = EACCES
create f 0640 abc; chown f 0 1000; u1000:1000 open f O_RDONLY
create f 0640 abc; chown f 0 1000; u1001:1001,1000 open f O_RDONLY
create f 0604 abc; chown f 0 1000; u1000:1000 open f O_RDONLY = EACCES
create f 0044 abc; chown f 1000 1000; u1000:1000 open f O_RDONLY = EACCES
create f 0000 abc; open f O_RDWR
mkdir d 0700; create d/f 0644; u1000:1000 open d/f O_RDONLY = EACCES
mkdir d 0711; create d/f 0644; u1000:1000 open d/f O_RDONLY; u1000:1000 list d = EACCES
mkdir d 0744; create d/f 0644; u1000:1000 list d = f; u1000:1000 open d/f O_RDONLY = EACCES
create f 0644; u1000:1000 open f O_RDONLY|O_NOATIME = EPERM
create f 0644; chown f 1000 1000; u1000:1000 open f O_RDONLY|O_NOATIME
open missing O_RDONLY = ENOENT
create f 0644; open f/x O_RDONLY = ENOTDIR
create f 0644; open f O_RDONLY|O_DIRECTORY = ENOTDIR
mkdir d 0755; open d O_RDWR = EISDIR
mkdir d 0755; open d O_RDONLY
symlink l l; open l O_RDONLY = ELOOP
create f 0644; symlink f l; open l O_RDONLY|O_NOFOLLOW = ELOOP
create f 0644 abc; open f O_WRONLY|O_TRUNC; stat f size = 0
create f 0644 abc; open f O_RDONLY|O_TRUNC; stat f size = 0
create f 0444 abc; u1000:1000 open f O_RDONLY|O_TRUNC = EACCES; stat f size = 3
mkfifo p 0644; open p O_RDONLY|O_NONBLOCK; open p O_WRONLY|O_NONBLOCK = ENXIO
mksock s 0644; open s O_RDONLY = ENXIO
open n*256 O_RDONLY = ENAMETOOLONG
create f 0644 abc; append f def; read f = abcdef
create f 0644 abc; open f O_WRONLY|O_APPEND|O_TRUNC; append f x; read f = x
create f 0644; access f 4 = yes; u1000:1000 access f 2 = no; u1000:1000 access f 1 = no; access f 1 = no
create f 0755; u1000:1000 access f 1 = yes; access f 1 = yes
mkdir d 0700; u1000:1000 access d 1 = no; access d 7 = yes
"""

SIZE_AND_TIME = """
create f 0644 abc; truncate f 2; read f = ab
create f 0644 abc; truncate f 1000000; stat f size = 1000000
create f 0644 abc; truncate f 0; truncate f 5; stat f size = 5
create f 0644; truncate f 10000000000; stat f size = 10000000000
create f 0644; truncate f -1 = EINVAL
create f 0644; truncate f 9223372036854775807 = EFBIG
mkdir d 0755; truncate d 0 = EISDIR
truncate missing 0 = ENOENT
create f 0644 abc; u1000:1000 truncate f 0 = EACCES
create f 0644 abc; chown f 1000 1000; u1000:1000 truncate f 1; stat f size uid = 1,1000
create f 0644 abc; changes mtime f truncate f 1 = newer
create f 0644 abc; changes ctime f truncate f 1 = newer
create f 0644; chmod f 6777; u1000:1000 truncate f 1; stat f mode = 0777
create f 0644; chmod f 6777; truncate f 1; stat f mode = 6777
create f 0644; chmod f 6777; u1000:1000 write f x; stat f mode = 0777
create f 0644; chmod f 6777; write f x; stat f mode = 6777
create f 0644; chmod f 6777; u1000:1000 open f O_WRONLY|O_TRUNC; stat f mode = 0777
create f 0644; chown f 0 1000; chmod f 2767; u1000:1000 write f x; stat f mode = 2767
create f 0644; utimens f 1000000000123456789 1500000000987654321; stat f atime_ns mtime_ns = 1000000000123456789,1500000000987654321
create f 0644; utimens f 1 999999999; stat f atime_ns mtime_ns = 1,999999999
create f 0644; utimens f -1000000001 -1; stat f atime_ns mtime_ns = -1000000001,-1
create f 0644; utimens f 5000000000000000000 5000000000000000001; stat f mtime_ns = 5000000000000000001
mkdir d 0755; utimens d 1 2; stat d atime_ns mtime_ns = 1,2
symlink missing l; utimens l 1 2 = ENOENT
create f 0666; u1000:1000 utimens f 1 2 = EPERM
create f 0666; u1000:1000 touch f
create f 0644; u1000:1000 touch f = EACCES
create f 0644; chown f 1000 1000; u1000:1000 utimens f 1 2; stat f mtime_ns = 2
create f 0644; changes mtime f touch f = newer
create f 0644; changes ctime f utimens f 1 2 = newer
create f 0644; changes mtime f write f x = newer
create f 0644 abc; changes mtime f append f x = newer
create f 0644 abc; changes mtime f open f O_WRONLY|O_TRUNC = newer
mkdir d 0755; changes mtime . create d/f 0644 = same
"""

SCRIPTS = [
    pytest.param(line.strip(), id=f"{group}-{line.strip()[:70]}")
    for group, text in {
        "chmod": CHMOD,
        "chown": CHOWN,
        "create": CREATE,
        "link": LINK,
        "rename": RENAME,
        "remove": REMOVE,
        "open": OPEN,
        "size": SIZE_AND_TIME,
    }.items()
    for line in text.strip().splitlines()
]
assert len(SCRIPTS) >= 150


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_has_the_same_outcomes_bare_and_mounted(script: str, twins: Twins) -> None:
    assert run_script(script, twins.bare) == expected(script)
    assert run_script(script, twins.mount) == expected(script)


def test_unsupported_rename_flag_is_refused(twins: Twins) -> None:
    assert run_script("create f 0644; whiteout f g", twins.mount)[1] == "whiteout f g => EINVAL"
