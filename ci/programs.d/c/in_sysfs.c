/* A program that looks for its devices in /sys/class/infiniband, by each function that leads there,
 * and compares what it reads with what verbs tell. What lies elsewhere must be as the kernel has it.
 *
 *   in_sysfs roce|iwarp DEVICE */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CLASS "/sys/class/infiniband"

static const char *device;
static int is_roce;

static void must(int holds, const char *what, const char *of)
{
    if (holds)
        return;
    fprintf(stderr, "in_sysfs: failed: %s: %s (errno: %s)\n", what, of, strerror(errno));
    exit(1);
}

/* Reads a file whose descriptor is that, up to its newline. */
static void take(int file, char text[256], const char *path)
{
    must(file >= 0, "open", path);
    ssize_t length = read(file, text, 255);
    must(length > 0 && text[length - 1] == '\n', "read", path);
    text[length - 1] = 0;
    close(file);
}

static int by_open(const char *path) { return open(path, O_RDONLY); }
static int by_open64(const char *path) { return open64(path, O_RDONLY | O_CLOEXEC); }
static int by_openat(const char *path) { return openat(AT_FDCWD, path, O_RDONLY); }
static int by_openat64(const char *path) { return openat64(-1, path, O_RDONLY); }
static int of_stream(FILE *stream)
{
    int file = stream ? dup(fileno(stream)) : -1;
    if (stream)
        fclose(stream);
    return file;
}
static int by_fopen(const char *path) { return of_stream(fopen(path, "r")); }
static int by_fopen64(const char *path) { return of_stream(fopen64(path, "re")); }
static int by_directory(const char *path)
{
    int directory = open(CLASS, O_RDONLY | O_DIRECTORY);
    int file = openat(directory, path + sizeof CLASS, O_RDONLY);
    close(directory);
    return file;
}
/* As the compiler has it where it checks more. */
static int by_open_2(const char *path)
{
    int (*checked)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_DEFAULT, "__open_2");
    must(checked != NULL, "dlsym", "__open_2");
    return checked(path, O_RDONLY);
}

static int (*const WAYS[])(const char *) = {by_open, by_open64, by_openat, by_openat64, by_fopen, by_fopen64, by_directory,
                                            by_open_2};

/* Reads a file of the device, in all ways. */
static void read_file(char text[256], const char *format, ...)
{
    char path[PATH_MAX], other[256];
    int length = snprintf(path, sizeof path, CLASS "/%s/", device);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + length, sizeof path - length, format, arguments);
    va_end(arguments);
    for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
        errno = EPROTO;
        int file = WAYS[way](path);
        must(errno == EPROTO, "errno stays", path);
        take(file, way ? other : text, path);
        must(!way || !strcmp(text, other), "all ways read the same", path);
    }
}

static void expect(const char *expected, const char *path)
{
    char text[256];
    read_file(text, "%s", path);
    must(!strcmp(text, expected), path, text);
}

static void compare_gids(struct ibv_context *context, const struct ibv_port_attr *port)
{
    char text[256], expected[256];
    for (int index = 0; index < port->gid_tbl_len || index < 4; index++) {
        union ibv_gid gid;
        must(ibv_query_gid(context, 1, index, &gid) == 0, "ibv_query_gid", device);
        for (int group = 0; group < 8; group++)
            sprintf(expected + 5 * group, "%02x%02x:", gid.raw[2 * group], gid.raw[2 * group + 1]);
        expected[39] = 0;
        read_file(text, "ports/1/gids/%d", index);
        must(!strcmp(text, expected), "a GID", text);
        read_file(text, "ports/1/gid_attrs/types/%d", index);
        must(!strcmp(text, is_roce ? "RoCE v2" : "IB/RoCE v1"), "the type of a GID", text);
        read_file(text, "ports/1/gid_attrs/ndevs/%d", index);
        must(strstr(device, text) != NULL || strstr(device, "any") != NULL, "the interface of a GID", text);
        struct ibv_gid_entry entry;
        if (index >= port->gid_tbl_len)
            continue;
        must(ibv_query_gid_ex(context, 1, index, &entry, 0) == 0, "ibv_query_gid_ex", device);
        must(entry.gid_type == (is_roce ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB), "the type that verbs tell", device);
    }
}

static void compare_with_verbs(struct ibv_device *found)
{
    char expected[256];
    struct ibv_context *context = ibv_open_device(found);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    must(context && !ibv_query_device(context, &attr) && !ibv_query_port(context, 1, &port), "queries", device);
    const unsigned char *guid = (const unsigned char *)&attr.node_guid;
    for (int group = 0; group < 4; group++)
        sprintf(expected + 5 * group, "%02x%02x:", guid[2 * group], guid[2 * group + 1]);
    expected[19] = 0;
    expect(expected, "node_guid");
    expect(attr.fw_ver, "fw_ver");
    must(found->node_type == (is_roce ? IBV_NODE_CA : IBV_NODE_RNIC), "the type that verbs tell", device);
    expect(is_roce ? "1: CA" : "4: RNIC", "node_type");
    expect(port.state == IBV_PORT_ACTIVE ? "4: ACTIVE" : "1: DOWN", "ports/1/state");
    expect("Ethernet", "ports/1/link_layer");
    expect("0xffff", "ports/1/pkeys/0");
    compare_gids(context, &port);
    ibv_close_device(context);
}

/* Lists the class, in both ways: there are as many entries as devices, and the device is one. */
static void list(int count)
{
    struct dirent *entry, **all;
    DIR *directory = opendir(CLASS);
    int listed = 0, has = 0;
    must(directory != NULL, "opendir", CLASS);
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.') {
            listed++;
            has |= !strcmp(entry->d_name, device);
        }
    closedir(directory);
    must(listed == count && has, "the class lists the devices", device);
    must(scandir(CLASS "/", &all, NULL, alphasort) == count + 2, "scandir", CLASS);
    for (int i = 0; i < count + 2; i++)
        free(all[i]);
    free(all);
}

static void examine_links(void)
{
    char path[PATH_MAX], text[PATH_MAX], resolved[PATH_MAX];
    struct stat status, other;
    struct stat64 status64;
    struct statx extended;
    snprintf(path, sizeof path, CLASS "/%s", device);
    must(!lstat(path, &status) && S_ISLNK(status.st_mode), "lstat", path);
    must(!lstat64(path, &status64) && status64.st_ino == status.st_ino, "lstat64", path);
    must(!fstatat(AT_FDCWD, path, &other, AT_SYMLINK_NOFOLLOW) && other.st_ino == status.st_ino, "fstatat", path);
    must(!fstatat64(AT_FDCWD, path, &status64, 0) && S_ISDIR(status64.st_mode), "fstatat64", path);
    must(!stat(path, &status) && S_ISDIR(status.st_mode), "stat", path);
    must(!stat64(path, &status64) && status64.st_ino == status.st_ino, "stat64", path);
    must(!statx(AT_FDCWD, path, 0, STATX_INO, &extended) && extended.stx_ino == status.st_ino, "statx", path);
#ifdef __x86_64__
    int (*old)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat");
    must(old && !old(1, path, &other) && other.st_ino == status.st_ino, "__xstat", path);
#endif
    must(!access(path, R_OK | X_OK) && !eaccess(path, R_OK), "access", path);
    must(!faccessat(AT_FDCWD, path, R_OK, AT_EACCESS), "faccessat", path);

    must(getxattr(path, "user.none", NULL, 0) == -1 && errno != ENOENT, "getxattr", path);

    /* A program that follows links itself. */
    ssize_t length = readlink(path, text, sizeof text - 1);
    must(length > 0 && text[0] == '/', "readlink", path);
    text[length] = 0;
    must(!strcmp(realpath(path, resolved), text), "readlink, realpath", path);
    must(readlinkat(AT_FDCWD, path, resolved, 9) == 9 && !memcmp(text, resolved, 9), "readlinkat, a small buffer", path);
    must(!access(strcat(text, "/node_type"), R_OK), "where the link leads", text);

    /* As Mooncake finds a device's NUMA node. */
    snprintf(path, sizeof path, CLASS "/%s/../..", device);
    must(realpath(path, resolved) == resolved, "realpath", path);
    char *made = realpath(path, NULL), *canonical = canonicalize_file_name(path);
    must(made && canonical && !strcmp(made, resolved) && !strcmp(canonical, resolved), "realpath of NULL", path);
    free(made);
    free(canonical);
    snprintf(text, sizeof text, "%.4000s/numa_node", resolved);
    take(open(text, O_RDONLY), path, text);
    must(!strcmp(path, "-1") || (path[0] >= '0' && path[0] <= '9'), "a NUMA node", path);
}

/* What lies elsewhere is what the kernel says by itself. */
static void compare_elsewhere(void)
{
    static const char *const PATHS[] = {
        "/", "/sys", "/sys/class", "/sys/class/net", "/sys/class/infiniband_verbs", "/sys/class/infiniban", CLASS "/..",
        CLASS "/../net", CLASS "/../..", CLASS "/rnic_nowhere", CLASS "/rnic_nowhere/ports", CLASS "x", "sys/class/infiniband",
        ".", "/proc/self/exe", "/dev/null", "/nowhere", "", CLASS "/../../../../etc/passwd", "/sys/class/net/../infiniband/x"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        const char *path = PATHS[i];
        struct stat status = {0}, kernels = {0};
        int there = syscall(SYS_newfstatat, AT_FDCWD, path, &kernels, 0), why = errno;
        must(stat(path, &status) == there && (there == 0 || errno == why), "stat", path);
        must(status.st_ino == kernels.st_ino && status.st_dev == kernels.st_dev, "it is the same file", path);
        must(access(path, F_OK) == there && (there == 0 || errno == why), "access", path);
        char *real = realpath(path, NULL);
        must((real != NULL) == (there == 0), "realpath", path);
        free(real);
        int file = open(path, O_RDONLY | O_PATH);
        must((file >= 0) == (there == 0), "open", path);
        close(file);
    }
    /* What is no path at all. */
    const char *volatile none = NULL;
    errno = 0;
    must(realpath(none, NULL) == NULL && errno == EINVAL, "realpath", "NULL");
    must(access(none, F_OK) == -1 && errno == EFAULT, "access", "NULL");
    must(open(none, O_RDONLY) == -1 && errno == EFAULT, "open", "NULL");
    static char lengthy[3 * PATH_MAX];
    memset(lengthy, 'x', sizeof lengthy - 1);
    memcpy(lengthy, CLASS "/", sizeof CLASS);
    must(access(lengthy, F_OK) == -1 && errno == ENAMETOOLONG, "access", "a long path");
    /* A file that it makes. */
    int file = open("in_sysfs.made", O_CREAT | O_EXCL | O_WRONLY, 0640);
    struct stat status;
    must(file >= 0 && !fstat(file, &status) && (status.st_mode & 0777) == 0640, "open", "a new file");
    close(file);
    must(!unlink("in_sysfs.made"), "unlink", "a new file");
}

/* The directory may go while the program runs: then sysfs is as the kernel has it. */
static void go_without(void)
{
    const char *tree = getenv("RNIC_SYSFS");
    char path[PATH_MAX], away[PATH_MAX];
    must(tree != NULL, "getenv", "RNIC_SYSFS");
    snprintf(path, sizeof path, CLASS "/%s/node_type", device);
    snprintf(away, sizeof away, "%s-away", tree);
    must(!rename(tree, away), "rename", tree);
    int left = access(path, F_OK), why = errno;
    DIR *directory = opendir(CLASS);
    must(!rename(away, tree), "rename", away);
    must(left == -1 && why == ENOENT, "it is gone", path);
    if (directory)
        closedir(directory);
    must(!access(path, F_OK), "it is back", path);
}

static void *in_thread(void *unused)
{
    for (int i = 0; i < 200; i++)
        expect(is_roce ? "1: CA" : "4: RNIC", "node_type");
    return unused;
}

int main(int count, char **arguments)
{
    must(count == 3, "two arguments", "roce|iwarp DEVICE");
    is_roce = !strcmp(arguments[1], "roce");
    device = arguments[2];
    int devices;
    struct ibv_device **all = ibv_get_device_list(&devices), *found = NULL;
    for (int i = 0; all && i < devices; i++)
        if (!strcmp(ibv_get_device_name(all[i]), device))
            found = all[i];
    must(found != NULL, "ibv_get_device_list", device);
    list(devices);
    compare_with_verbs(found);
    examine_links();
    compare_elsewhere();

    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        must(!pthread_create(&threads[i], NULL, in_thread, NULL), "pthread_create", "");
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pid_t child = fork();
    if (child == 0) {
        /* It does not need the variable any more. */
        clearenv();
        expect(is_roce ? "1: CA" : "4: RNIC", "node_type");
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "a child reads it", "");
    go_without();
    ibv_free_device_list(all);
    puts("in_sysfs: right");
    return 0;
}
