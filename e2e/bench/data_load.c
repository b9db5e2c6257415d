/* What applications do, fast enough not to be what is measured. Prints "OPERATIONS SECONDS".
 *
 * O_DIRECT is set after opening: the kernel then passes every read and write on to the server, which does not hear of the flag and goes
 * on to use the page cache of what it serves.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS_MAX 64
#define ALIGNMENT 4096

static const char *path;
static size_t block;
static long count_max = LONG_MAX; /* of each client */
static struct {
	atomic_int stop;
	atomic_long operations;
} *shared;

static void fail(const char *what)
{
	fprintf(stderr, "data_load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int open_direct(int flags, off_t *blocks)
{
	struct stat status;
	int fd = open(path, flags);
	if (fd < 0 || fcntl(fd, F_SETFL, O_DIRECT) < 0 || fstat(fd, &status) < 0)
		fail(path);
	*blocks = status.st_size / (off_t)block;
	return fd;
}

static char *make_buffer(void)
{
	void *buffer;
	errno = posix_memalign(&buffer, ALIGNMENT, block);
	if (errno)
		fail("memory");
	memset(buffer, 'x', block);
	return buffer;
}

static void read_at_random(unsigned int number)
{
	unsigned int seed = number * 7919 + 1;
	char *buffer = make_buffer();
	off_t blocks;
	int fd = open_direct(O_RDONLY, &blocks);
	long count = 0;
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed) && count < count_max) {
		off_t at = rand_r(&seed) % blocks * (off_t)block;
		if (pread(fd, buffer, block, at) != (ssize_t)block)
			fail("pread");
		count++;
	}
	atomic_fetch_add(&shared->operations, count);
	close(fd);
}

static void in_order(int is_write, double seconds)
{
	char *buffer = make_buffer();
	off_t blocks;
	int fd = open_direct(is_write ? O_WRONLY : O_RDONLY, &blocks);
	double until = now() + seconds;
	long count = 0;
	for (; now() < until; count++) {
		off_t at = count % blocks * (off_t)block;
		ssize_t got = is_write ? pwrite(fd, buffer, block, at) : pread(fd, buffer, block, at);
		if (got != (ssize_t)block)
			fail(is_write ? "pwrite" : "pread");
	}
	shared->operations = count;
	close(fd);
}

/* Processes, as applications are, and not threads of one. */
static void run_clients(long clients, double seconds)
{
	struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	for (long number = 0; number < clients; number++) {
		pid_t child = fork();
		if (child < 0)
			fail("fork");
		if (child == 0) {
			read_at_random((unsigned int)number);
			_exit(0);
		}
	}
	if (seconds > 0) {
		nanosleep(&pause, NULL);
		shared->stop = 1;
	}
	for (int status; wait(&status) > 0;)
		if (status)
			exit(1);
}

static void on_names(const char *what, long count)
{
	char name[32];
	struct stat status;
	int fd;
	if (chdir(path) < 0)
		fail(path);
	for (long number = 0; number < count; number++) {
		snprintf(name, sizeof name, "file%06ld", number);
		if (!strcmp(what, "create")) {
			fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
			if (fd < 0 || close(fd) < 0)
				fail(name);
		} else if (!strcmp(what, "stat") ? lstat(name, &status) : unlink(name)) {
			fail(name);
		}
	}
	shared->operations = count;
}

int main(int argc, char **argv)
{
	const char *what = argc == 5 ? argv[1] : "";
	double began, number = argc == 5 ? atof(argv[3]) : 0;
	long last = argc == 5 ? atol(argv[4]) : 0;

	path = argc == 5 ? argv[2] : "";
	block = !strncmp(what, "big", 3) ? 1 << 20 : 4096;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("memory");
	began = now();
	if (!strcmp(what, "read") && last > 0 && last <= CLIENTS_MAX) {
		run_clients(last, number);
	} else if (!strcmp(what, "read-count")) {
		count_max = last;
		run_clients(1, 0);
	} else if (!strcmp(what, "big-read") || !strcmp(what, "big-write")) {
		in_order(!strcmp(what, "big-write"), number);
	} else if (!strcmp(what, "create") || !strcmp(what, "stat") || !strcmp(what, "unlink")) {
		on_names(what, last);
	} else {
		fprintf(stderr, "usage: data_load read|big-read|big-write FILE SECONDS CLIENTS\n"
				"       data_load read-count FILE 0 COUNT\n"
				"       data_load create|stat|unlink DIRECTORY 0 COUNT\n");
		return 2;
	}
	printf("%ld %.6f\n", shared->operations, now() - began);
	return 0;
}
