/* How long single calls take in a directory, in microseconds: each in a loop of 2,000.
 *
 *     gcc -O2 calls.c -o calls && ./calls DIR
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TIMES 2000

static char data[4096];

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void require(int done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

static void make_file(const char *path)
{
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    require(file >= 0 && write(file, data, sizeof data) == sizeof data && !close(file), path);
}

static void open_file(const char *path)
{
    int file = open(path, O_RDONLY);
    require(file >= 0 && !close(file), path);
}

static void read_file(const char *path)
{
    int file = open(path, O_RDONLY);
    require(file >= 0 && read(file, data, sizeof data) >= 0 && !close(file), path);
}

static void change_mode(const char *path)
{
    require(!chmod(path, 0600), path);
}

static void miss(const char *path)
{
    struct stat found;
    char absent[80];
    snprintf(absent, sizeof absent, "%s.absent", path);
    require(stat(absent, &found) != 0, absent);
}

static void remove_file(const char *path)
{
    require(!unlink(path), path);
}

static void make_directory(const char *path)
{
    require(!mkdir(path, 0755), path);
}

static void list_directory(const char *path)
{
    DIR *directory = opendir(path);
    require(directory != NULL, path);
    while (readdir(directory))
        ;
    closedir(directory);
}

static void remove_directory(const char *path)
{
    require(!rmdir(path), path);
}

static const struct {
    const char *name;
    void (*call)(const char *);
    const char *prefix;
} steps[] = {
    {"create, write 4 KiB, close", make_file, "f"},
    {"open, close", open_file, "f"},
    {"open, read, close", read_file, "f"},
    {"chmod", change_mode, "f"},
    {"stat of an absent name", miss, "f"},
    {"mkdir", make_directory, "d"},
    {"list an empty directory", list_directory, "d"},
    {"rmdir", remove_directory, "d"},
    {"unlink", remove_file, "f"},
};

int main(int count, char **arguments)
{
    require(count == 2 && !chdir(arguments[1]), "calls DIR");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        double start = now_us();
        for (int number = 0; number < TIMES; number++) {
            char path[64];
            snprintf(path, sizeof path, "calls-%s%d", steps[i].prefix, number);
            steps[i].call(path);
        }
        printf("%7.1f  %s\n", (now_us() - start) / TIMES, steps[i].name);
    }
    return 0;
}
