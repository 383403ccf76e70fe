/* The driver's structs and calls, for the programs beside it. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

struct info { uint64_t pointer; uint32_t size, op, arg, pad; };
union cb { struct { uint64_t handle; uint32_t op, size, ctx, flags; } in; struct { uint64_t handle; } out; };
union cs { struct { uint64_t restore, execute, seq; uint32_t n_restore, n_execute, timeout, flags, ctx, pad; } in;
           struct { uint64_t seq; } out; };
union wait { struct { uint64_t seq, timeout_us; uint32_t ctx, flags; uint64_t more[4]; } in; struct { uint32_t status; } out; };
union mem { struct { uint64_t arg[3]; uint32_t op, flags, ctx, count; } in; struct { uint64_t value; } out; };
struct chunk { uint64_t cb; uint32_t queue, size, flags, engine, pad[10]; };
struct lin_dma { uint32_t size, ctl; uint64_t from, to; };

static int call(int fd, unsigned number, void *argument, unsigned size)
{
    return ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'd', 0x40 + number, size), argument);
}

static void check(int good, const char *what)
{
    printf("%s: %s\n", what, good ? "ok" : strerror(errno));
    fflush(stdout);
    if (!good)
        exit(1);
}

static int status_of(int fd, uint32_t *status)
{
    uint32_t answer[2] = {99, 99};
    struct info info = {.pointer = (uint64_t)answer, .size = sizeof answer, .op = 4};
    int done = call(fd, 0, &info, sizeof info);
    *status = answer[0];
    return done;
}

/* Returns 0 or -1, and the answer in `value`. */
static uint64_t value;

static int memory(int fd, unsigned op, unsigned flags, uint64_t a, uint64_t b, uint64_t c)
{
    union mem mem = {.in = {.arg = {a, b, c}, .op = op, .flags = flags}};
    int done = call(fd, 4, &mem, sizeof mem);
    value = mem.out.value;
    return done;
}
