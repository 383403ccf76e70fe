/*
 * UCX's registration cache and its cache of memory types on command: the peers of ours.
 *
 * Compiled against the headers of Debian's libucx-dev and run with its libucs, so that the structs are those of the library. It reads
 * commands of 64-bit numbers from its standard input and answers each with one number on its standard output:
 *
 *   1, regions, bytes a region, stride, bytes a query, number of queries, then as many offsets: makes a cache, registers, answers 0
 *   2, threads, queries a thread, the processor of each thread: runs them; answers the sum of the keys that were found, the nanoseconds
 *      of the slowest thread, how often a thread lost its processor, in how many nanoseconds all threads ran, and in how many any did
 *   3: answers UCX's version, major times 1000 plus minor
 *   4: as 1, with the cache of memory types; 2 then looks types up, and a query beyond the regions finds none
 *
 * Registering gives a key and does nothing else, as it does on our side.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <ucp/api/ucp_version.h>
#include <ucm/api/ucm.h>
#include <ucs/memory/memtype_cache.h>
#include <ucs/memory/rcache.h>

struct region {
    ucs_rcache_region_t super;
    uint64_t key;
};

static ucs_rcache_t *rcache;
static char *base;
static uint64_t *offsets;
static uint64_t number;
static uint64_t length;
static uint64_t made;
static int has_types;

static void need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rcache: %s\n", what);
        exit(1);
    }
}

static ucs_status_t reg(void *context, ucs_rcache_t *cache, void *arg, ucs_rcache_region_t *region, uint16_t flags)
{
    ((struct region *)region)->key = ++made;
    return UCS_OK;
}

static void dereg(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
}

static void dump(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region, char *buf, size_t max)
{
    snprintf(buf, max, "region");
}

static void merge(void *context, ucs_rcache_t *cache, void *arg, ucs_rcache_region_t *region)
{
}

static const ucs_rcache_ops_t ops = {
    .mem_reg = reg,
    .mem_dereg = dereg,
    .merge = merge,
    .dump_region = dump,
};

/* libucs calls it when it makes the cache of memory types. Without a driver of an accelerator, libucm refuses. */
ucs_status_t ucm_set_event_handler(int events, int priority, ucm_event_callback_t callback, void *arg)
{
    return UCS_OK;
}

static uint64_t next(void)
{
    uint64_t value;
    if (fread(&value, sizeof(value), 1, stdin) != 1)
        exit(0);
    return value;
}

static void answer(uint64_t value)
{
    need(fwrite(&value, sizeof(value), 1, stdout) == 1 && fflush(stdout) == 0, "nobody reads the answer");
}

static void make_types(uint64_t regions, uint64_t bytes, uint64_t stride)
{
    ucs_memory_info_t info;
    uint64_t n;

    /* The first lookup makes the cache; an update before it does nothing. */
    need(ucs_memtype_cache_lookup(base, 1, &info) == UCS_ERR_NO_ELEM, "no empty cache");
    for (n = 0; n < regions; n++)
        ucs_memtype_cache_update(base + n * stride, bytes, UCS_MEMORY_TYPE_CUDA, 1);
    need(ucs_memtype_cache_lookup(base, 1, &info) == UCS_OK && info.type == UCS_MEMORY_TYPE_CUDA, "no memory types");
    has_types = 1;
    answer(0);
}

static void make(int wants_types)
{
    uint64_t regions = next(), bytes = next(), stride = next(), n;
    ucs_rcache_params_t params;
    ucs_rcache_region_t *region;

    length = next();
    number = next();
    offsets = malloc(number * sizeof(*offsets));
    need(offsets != NULL && fread(offsets, sizeof(*offsets), number, stdin) == number, "no offsets");
    base = mmap(NULL, regions * stride, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(base != MAP_FAILED, "no addresses");
    if (wants_types) {
        make_types(regions, bytes, stride);
        return;
    }

    ucs_rcache_set_default_params(&params);
    params.region_struct_size = sizeof(struct region);
    params.ucm_events = 0;
    params.ucm_event_priority = 0;
    params.ops = &ops;
    params.context = NULL;
    params.flags = UCS_RCACHE_FLAG_NO_PFN_CHECK;
    params.max_regions = ULONG_MAX;
    params.max_size = SIZE_MAX;
    params.max_unreleased = SIZE_MAX;
    need(ucs_rcache_create(&params, "bench", NULL, &rcache) == UCS_OK, "no cache");
    for (n = 0; n < regions; n++) {
        need(ucs_rcache_get(rcache, base + n * stride, bytes, 4096, PROT_READ | PROT_WRITE, NULL, &region) == UCS_OK,
             "not registered");
        ucs_rcache_region_put(rcache, region);
    }
    need(made == regions, "regions were merged");
    answer(0);
}

struct part {
    pthread_t thread;
    uint64_t first, count, processor, sum;
    uint64_t start, end, switches;
};

static uint64_t threads, ready;

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static uint64_t switches(void)
{
    struct rusage usage;

    need(getrusage(RUSAGE_THREAD, &usage) == 0, "no usage");
    return usage.ru_nivcsw;
}

static void *run(void *argument)
{
    struct part *part = argument;
    uint64_t at = part->first, left, sum = 0, before;
    ucs_rcache_region_t *region;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(part->processor, &set);
    need(pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0, "not pinned");
    __atomic_fetch_add(&ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&ready, __ATOMIC_ACQUIRE) < threads)
        sched_yield();
    before = switches();
    part->start = now();
    for (left = has_types ? part->count : 0; left > 0; left--) {
        ucs_memory_info_t info;

        if (ucs_memtype_cache_lookup(base + offsets[at], length, &info) == UCS_OK)
            sum += info.sys_dev;
        if (++at == number)
            at = 0;
    }
    for (left = has_types ? 0 : part->count; left > 0; left--) {
        if (ucs_rcache_get(rcache, base + offsets[at], length, 4096, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK)
            need(0, "no hit");
        sum += ((struct region *)region)->key;
        ucs_rcache_region_put(rcache, region);
        if (++at == number)
            at = 0;
    }
    part->end = now();
    part->switches = switches() - before;
    part->sum = sum;
    return NULL;
}

static void runs(void)
{
    static struct part parts[16];
    uint64_t count, n, sum = 0, longest = 0, lost = 0, first = UINT64_MAX, last = 0, from = 0, to = UINT64_MAX;

    threads = next();
    count = next();
    need(threads >= 1 && threads <= 16, "too many threads");
    for (n = 0; n < threads; n++)
        parts[n].processor = next();
    ready = 0;
    for (n = 0; n < threads; n++) {
        parts[n].first = number / threads * n;
        parts[n].count = count;
        need(pthread_create(&parts[n].thread, NULL, run, &parts[n]) == 0, "no thread");
    }
    for (n = 0; n < threads; n++) {
        struct part *part = &parts[n];

        pthread_join(part->thread, NULL);
        sum += part->sum;
        lost += part->switches;
        longest = part->end - part->start > longest ? part->end - part->start : longest;
        first = part->start < first ? part->start : first;
        from = part->start > from ? part->start : from;
        last = part->end > last ? part->end : last;
        to = part->end < to ? part->end : to;
    }
    answer(sum);
    answer(longest);
    answer(lost);
    answer(to > from ? to - from : 0);
    answer(last - first);
}

int main(void)
{
    for (;;) {
        switch (next()) {
        case 1:
            make(0);
            break;
        case 4:
            make(1);
            break;
        case 2:
            runs();
            break;
        case 3:
            answer(UCP_API_MAJOR * 1000 + UCP_API_MINOR);
            break;
        default:
            need(0, "no such command");
        }
    }
}
