/* A disk without space: below the folder FULL_DISK_BELOW nothing can be written and no folder made
 * while the first byte of the file FULL_DISK_FLAG, which is mapped into memory, is not zero.
 * Files can be made, as on most full disks. A process reads the variables when it begins, and when
 * it calls full_disk_begin. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const volatile char *flag;
static const char *below;

__attribute__((constructor)) void full_disk_begin(void)
{
    const char *path = getenv("FULL_DISK_FLAG");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    below = getenv("FULL_DISK_BELOW");
    if (mapped != MAP_FAILED)
        flag = mapped;
}

/* Whether a file, or what an open folder has of that name, is on the full disk. */
static int is_full(int fd, const char *name)
{
    char link[64], path[4096];
    if (flag == NULL || !*flag)
        return 0;
    if (name != NULL && name[0] == '/') {
        strncpy(path, name, sizeof path - 1);
        path[sizeof path - 1] = 0;
    } else {
        snprintf(link, sizeof link, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0)
            return 0;
        path[length] = 0;
    }
    if (strncmp(path, below, strlen(below)) != 0)
        return 0;
    errno = ENOSPC;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (real == NULL) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    return is_full(fd, NULL) ? -1 : real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(writev);
    return is_full(fd, NULL) ? -1 : real(fd, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REAL(pwrite);
    return is_full(fd, NULL) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    REAL(pwrite64);
    return is_full(fd, NULL) ? -1 : real(fd, data, size, offset);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    return is_full(AT_FDCWD, path) ? -1 : real(path, mode);
}

int mkdirat(int fd, const char *path, mode_t mode)
{
    REAL(mkdirat);
    return is_full(fd, path) ? -1 : real(fd, path, mode);
}
