// A FUSE client that knows nothing of Sidemount: memo MOUNTPOINT CREDENTIAL-FILE [text]
// Serves two files: "memo.txt" holds the text, "length" how long the credential is. As careless as clients are,
// it tells its credential in what it logs.
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fuse.h>
#include <stdio.h>
#include <string.h>

static char text[4096];
static char length[16];

static const char *content(const char *path) {
  if (strcmp(path, "/memo.txt") == 0) return text;
  if (strcmp(path, "/length") == 0) return length;
  return NULL;
}

static int memo_getattr(const char *path, struct stat *st, struct fuse_file_info *fi) {
  (void)fi;
  memset(st, 0, sizeof *st);
  if (strcmp(path, "/") == 0) {
    st->st_mode = S_IFDIR | 0755;
    st->st_nlink = 2;
    return 0;
  }
  if (!content(path)) return -ENOENT;
  st->st_mode = S_IFREG | 0444;
  st->st_nlink = 1;
  st->st_size = strlen(content(path));
  return 0;
}

static int memo_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t off, struct fuse_file_info *fi,
                        enum fuse_readdir_flags flags) {
  (void)off, (void)fi, (void)flags;
  if (strcmp(path, "/") != 0) return -ENOENT;
  static const char *const names[] = {".", "..", "memo.txt", "length"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) fill(buf, names[i], NULL, 0, 0);
  return 0;
}

static int memo_read(const char *path, char *buf, size_t size, off_t off, struct fuse_file_info *fi) {
  (void)fi;
  const char *from = content(path);
  if (!from) return -ENOENT;
  size_t whole = strlen(from);
  if ((size_t)off >= whole) return 0;
  if (size > whole - off) size = whole - off;
  memcpy(buf, from + off, size);
  return size;
}

static const struct fuse_operations operations = {
    .getattr = memo_getattr,
    .readdir = memo_readdir,
    .read = memo_read,
};

int main(int argc, char **argv) {
  if (argc < 3) return fprintf(stderr, "usage: memo MOUNTPOINT CREDENTIAL-FILE [text]\n"), 2;
  char credential[256] = "";
  FILE *file = fopen(argv[2], "r");
  if (!file || !fgets(credential, sizeof credential, file)) return perror(argv[2]), 1;
  fclose(file);
  credential[strcspn(credential, "\n")] = 0;
  snprintf(text, sizeof text, "%s\n", argc > 3 ? argv[3] : "remember");
  snprintf(length, sizeof length, "%zu\n", strlen(credential));
  fprintf(stderr, "memo: signed in with %s\n", credential);
  char foreground[] = "-f", single[] = "-s";
  char *arguments[] = {argv[0], argv[1], foreground, single, NULL};
  return fuse_main(4, arguments, &operations, NULL);
}
