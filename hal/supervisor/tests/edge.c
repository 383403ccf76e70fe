/* What an unmodified program may get wrong, or do at the same time.
 *
 * usage: edge CTL CASE, with the control word of a LIN_DMA packet. Exits with 1 at the first check
 * that fails. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { USERPTR = 4, REGISTER_DMABUF = 99 };
static unsigned ctl;
static int fd;

/* Memory at an address that no other process uses. */
static char *place(size_t len)
{
    char *at = mmap((void *)0x100000000, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static union mem host(char *at, uint64_t len)
{
    return (union mem){.in = {.arg = {(uint64_t)at, 0, len}, .op = 2, .flags = USERPTR}};
}

/* The struct ends after the flags: DRM reads the rest as zeros. */
static void short_size(void)
{
    union mem mem = host(place(8192), 8192);
    check(!call(fd, 4, &mem, 32), "map with a short struct");
    check(!memory(fd, 3, 0, mem.out.value, 0, 0), "unmap");
}

/* DRM copies an argument in the directions of the request's number only. */
static void directions(void)
{
    union mem mem = host(place(8192), 8192), before = mem;
    check(!ioctl(fd, _IOC(_IOC_WRITE, 'd', 0x44, sizeof mem), &mem), "map without an answer");
    check(!memcmp(&mem, &before, sizeof mem), "no answer is written");
    mem = host((char *)before.in.arg[0], 8192);
    check(ioctl(fd, _IOC(_IOC_READ, 'd', 0x44, sizeof mem), &mem) && errno == EINVAL, "no argument");
    check(!mem.in.op && !mem.in.arg[0], "an argument of zeros");
}

static void failed_call(void)
{
    union mem mem = host(place(8192), 8192), before;
    check(call(fd, 4, &mem, sizeof mem) && errno == ENOSPC, "map that a fault ends");
    check(!mem.in.arg[0] && !mem.in.arg[2], "the driver clears the argument");
    before = mem = (union mem){.in = {.arg = {memfd_create("none", 0), 4096}, .op = REGISTER_DMABUF}};
    check(call(fd, 4, &mem, sizeof mem) && errno == EOPNOTSUPP, "register a file that is no dma-buf");
    check(!memcmp(&mem, &before, sizeof mem), "the argument is the program's");
    int file = eventfd(0, EFD_CLOEXEC);
    struct info info = {.op = 28, .arg = file};
    check(!call(fd, 0, &info, sizeof info) && info.arg == (uint32_t)file, "the descriptor is the program's");
    info.op = 29;
    check(!call(fd, 0, &info, sizeof info), "unregister");
}

/* Copies a page from one device address to another. */
static void submit_copy(uint64_t from, uint64_t to)
{
    union cb cb = {.in = {.size = 4096, .flags = 1}};
    check(!call(fd, 1, &cb, sizeof cb), "create a command buffer");
    uint64_t buffer = cb.out.handle;
    struct lin_dma *packet = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)buffer);
    check(packet != MAP_FAILED, "mmap the command buffer");
    cb = (union cb){.in = {.handle = buffer, .op = 2, .flags = 2}};
    check(!call(fd, 1, &cb, sizeof cb), "address of the command buffer");
    *packet = (struct lin_dma){4096, ctl, from, to};
    struct chunk chunk = {.cb = cb.out.handle, .queue = 4, .size = sizeof *packet, .flags = 1};
    union cs cs = {.in = {.execute = (uint64_t)&chunk, .n_execute = 1}};
    check(!call(fd, 2, &cs, sizeof cs), "submit");
    union wait done = {.in = {.seq = cs.out.seq, .timeout_us = 10000000}};
    check(!call(fd, 3, &done, sizeof done) && !done.out.status, "wait");
}

/* Copies within memory that other threads map and unmap at the same time. */
static void *copies(void *unused)
{
    union cb cb = {.in = {.size = 4096, .flags = 1}};
    if (call(fd, 1, &cb, sizeof cb))
        return "create";
    uint64_t buffer = cb.out.handle;
    struct lin_dma *packet = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)buffer);
    memset(&cb, 0, sizeof cb);
    cb.in.handle = buffer;
    cb.in.op = 2;
    cb.in.flags = 2;
    if (packet == MAP_FAILED || call(fd, 1, &cb, sizeof cb))
        return "address";
    struct chunk chunk = {.cb = cb.out.handle, .queue = 4, .size = sizeof *packet, .flags = 1};
    char *own = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int turn = 1; turn < 100; turn++) {
        memset(own, turn, 4096);
        union mem mem = host(own, 8192);
        if (call(fd, 4, &mem, sizeof mem))
            return "map";
        uint64_t va = mem.out.value;
        *packet = (struct lin_dma){4096, ctl, va, va + 4096};
        union cs cs = {.in = {.execute = (uint64_t)&chunk, .n_execute = 1}};
        if (call(fd, 2, &cs, sizeof cs))
            return "submit";
        union wait done = {.in = {.seq = cs.out.seq, .timeout_us = 10000000}};
        if (call(fd, 3, &done, sizeof done) || done.out.status)
            return "wait";
        if (own[4096] != (char)turn || memcmp(own, own + 4096, 4096))
            return "bytes";
        mem = (union mem){.in = {.arg = {va}, .op = 3}};
        if (call(fd, 4, &mem, sizeof mem))
            return "unmap";
    }
    return NULL;
}

static void race(void)
{
    pthread_t threads[3];
    for (int n = 0; n < 3; n++)
        check(!pthread_create(&threads[n], NULL, copies, NULL), "thread");
    for (int n = 0; n < 3; n++) {
        void *failed = NULL;
        pthread_join(threads[n], &failed);
        check(!failed, failed ? failed : "thread");
    }
}

/* Waits for an interrupt that does not come. */
static void *waits(void *us)
{
    uint64_t word = 0;
    union wait wait_for = {.in = {.seq = (uint64_t)&word, .timeout_us = 1, .flags = 2 | 0xfff00000u, .more = {(uint64_t)us}}};
    call(fd, 3, &wait_for, sizeof wait_for);
    return NULL;
}

static void waiting(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (int n = 0; n < 600; n++) {
        pthread_t thread;
        check(!pthread_create(&thread, &small, waits, (void *)60000000), "thread");
    }
    sleep(2);
    uint32_t status;
    alarm(30);
    check(!status_of(fd, &status), "status while 600 threads wait");
    _exit(0);
}

static void killed(void)
{
    pthread_t thread;
    check(!pthread_create(&thread, NULL, waits, (void *)3600000000), "thread");
    sleep(1);
    kill(getpid(), SIGKILL);
}

static void too_much(void)
{
    union mem mem = host(place(1ull << 40), 1ull << 40);
    check(call(fd, 4, &mem, sizeof mem) && errno == ENOMEM, "more memory than the machine has");
}

static void entries_of_file(void)
{
    char bytes[256];
    int file = open("/sys/class/accel/accel0/device/pci_addr", O_RDONLY);
    check(file >= 0 && syscall(SYS_getdents64, file, bytes, sizeof bytes) < 0 && errno == ENOTDIR, "entries of a file");
}

/* The descriptors of a child after its exec. */
enum { TO_PARENT = 100, TO_CHILD = 101 };

/* A child maps memory and executes this program again, which has other memory at the address. The
 * device then writes to the mapping. */
static void executed(void)
{
    int up[2], down[2], status;
    uint64_t theirs;
    char byte, number[16];
    check(!pipe2(up, O_CLOEXEC) && !pipe2(down, O_CLOEXEC), "pipes");
    pid_t child = fork();
    if (!child) {
        char *at = place(4096);
        memset(at, 0x11, 4096);
        union mem mem = host(at, 4096);
        check(!call(fd, 4, &mem, sizeof mem), "map in a child");
        check(write(up[1], &mem.out.value, 8) == 8, "write");
        dup2(up[1], TO_PARENT);
        dup2(down[0], TO_CHILD);
        snprintf(number, sizeof number, "%u", ctl);
        execl("/proc/self/exe", "edge", number, "after_exec", (char *)NULL);
        _exit(2);
    }
    close(up[1]);
    check(read(up[0], &theirs, 8) == 8 && read(up[0], &byte, 1) == 1, "exec");
    char *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(own, 0x33, 4096);
    union mem mem = host(own, 4096);
    check(!call(fd, 4, &mem, sizeof mem), "map");
    submit_copy(mem.out.value, theirs);
    close(down[1]);
    check(waitpid(child, &status, 0) == child && status == 0, "memory after exec");
}

/* What `executed` executes: waits until the device has written, and checks its own memory. */
static int after_exec(void)
{
    char *at = place(4096), byte;
    memset(at, 0x22, 4096);
    if (write(TO_PARENT, "x", 1) != 1 || read(TO_CHILD, &byte, 1) != 0)
        return 3;
    for (int n = 0; n < 4096; n++)
        if (at[n] != 0x22)
            return 1;
    return 0;
}

int main(int count, char **words)
{
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"short_size", short_size}, {"directions", directions}, {"failed_call", failed_call}, {"race", race},
        {"waiting", waiting}, {"killed", killed}, {"too_much", too_much}, {"entries_of_file", entries_of_file},
        {"executed", executed},
    };
    if (count == 3 && !strcmp(words[2], "after_exec"))
        return after_exec();
    ctl = count == 3 ? strtoul(words[1], NULL, 0) : 0;
    fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
    check(fd >= 0, "open");
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        if (count == 3 && !strcmp(words[2], cases[n].name)) {
            cases[n].run();
            return 0;
        }
    return 2;
}
