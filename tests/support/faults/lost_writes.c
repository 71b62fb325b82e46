/* Writes of Lance that fail for a moment, at random from a seed.

   LOST_WRITES_BELOW is the folder whose files are concerned, LOST_WRITES_RATE the share of the calls
   in millionths, LOST_WRITES_SEED the seed, LOST_WRITES_LOG a file that gets a byte for each failure.
   Only files of Lance are concerned, which have names like .tmpAbCdEf while they are written. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static unsigned int seed;
static int rate = -1, log_file = -1;

/* 0: go on; else what to do, 1 to 3. */
static int failure_of(int fd)
{
    char name[64], path[4096];
    const char *below = getenv("LOST_WRITES_BELOW");
    int kind = 0;
    if (below == NULL)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, below, strlen(below)) != 0 || strstr(path, "/.tmp") == NULL)
        return 0;
    pthread_mutex_lock(&lock);
    if (rate < 0) {
        rate = atoi(getenv("LOST_WRITES_RATE"));
        seed = (unsigned int)atoi(getenv("LOST_WRITES_SEED"));
        log_file = open(getenv("LOST_WRITES_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    if (rand_r(&seed) % 1000000 < rate) {
        kind = 1 + rand_r(&seed) % 3;
        if (real_write(log_file, "x", 1) < 0)
            kind = 0;
    }
    pthread_mutex_unlock(&lock);
    return kind;
}

static void find_real(void)
{
    if (real_write == NULL) {
        real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
        real_write = dlsym(RTLD_NEXT, "write");
    }
}

ssize_t write(int fd, const void *data, size_t size)
{
    find_real();
    switch (failure_of(fd)) {
    case 1: errno = ENOSPC; return -1;
    case 2: errno = EIO; return -1;
    case 3: return real_write(fd, data, size > 1 ? size / 2 : size);
    }
    return real_write(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    find_real();
    switch (failure_of(fd)) {
    case 1: errno = ENOSPC; return -1;
    case 2: errno = EIO; return -1;
    case 3: return real_pwrite(fd, data, size > 1 ? size / 2 : size, offset);
    }
    return real_pwrite(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}
