/* Uses every function of libgaudi_copy as a program does; compiled as C and as C++, and run on the
 * mock. Prints a line for each case that passed.
 *
 *     program            all cases
 *     program peer FD    the second process of a case: receives a key on FD
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gaudi_copy.h"
#include "layouts.h"

#define LEN 100000u

static const char *self;

static void expect(int is_true, const char *what, int line)
{
	if (is_true)
		return;
	fprintf(stderr, "program.c:%d: %s; last error: %s\n", line, what, gaudi_copy_error());
	exit(1);
}

#define OK(call) expect((call) == 0, #call " succeeds", __LINE__)
#define FAILS(call, error) expect((call) == -(error), #call " fails with " #error, __LINE__)
#define IS(condition) expect(!!(condition), #condition, __LINE__)

static uint64_t address_of(const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer;
}

static uint64_t opened(const char *spec)
{
	uint64_t domain = 0;

	OK(gaudi_copy_open(spec, &domain));
	IS(domain != 0);
	return domain;
}

static uint64_t allocated(uint64_t domain, uint64_t len, uint32_t type, uint32_t export_mode)
{
	struct gaudi_copy_alloc_options options;
	uint64_t address = 0;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.type = type;
	options.export_mode = export_mode;
	OK(gaudi_copy_alloc(domain, len, &options, &address));
	return address;
}

static void fill(unsigned char *bytes, unsigned seed)
{
	for (unsigned at = 0; at < LEN; at++)
		bytes[at] = (unsigned char)(at * 31 + seed);
}

static unsigned char first[LEN], second[LEN];

static void copies_keep_data(void)
{
	uint64_t domain = opened(NULL);
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_POOLED);
	uint64_t other = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	uint64_t host = allocated(domain, LEN, GAUDI_COPY_HOST, 0);
	static const uint64_t sizes[] = {0, 1, 7, 2048, 2049, 65537, LEN};

	for (unsigned at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
		uint64_t len = sizes[at];

		fill(first, at);
		memset(second, 0, LEN);
		OK(gaudi_copy_copy(domain, device, address_of(first), len));
		OK(gaudi_copy_copy(domain, other, device, len));
		OK(gaudi_copy_copy(domain, host, other, len));
		IS(memcmp((void *)(uintptr_t)host, first, len) == 0);
		OK(gaudi_copy_copy(domain, address_of(second), other, len));
		IS(memcmp(first, second, len) == 0);
	}
	FAILS(gaudi_copy_copy(domain, host, address_of(first), 8), EOPNOTSUPP);
	FAILS(gaudi_copy_copy(domain, device + 8, address_of(first), LEN), EINVAL);
	FAILS(gaudi_copy_copy(domain, device, 0, 8), EINVAL);
	FAILS(gaudi_copy_copy(domain, device, 1ull << 62, 8), EFAULT);
	FAILS(gaudi_copy_close(domain), EBUSY);
	IS(strstr(gaudi_copy_error(), "3 allocations") != NULL);
	OK(gaudi_copy_free(domain, device));
	FAILS(gaudi_copy_free(domain, device), ENOENT);
	OK(gaudi_copy_free(domain, other));
	OK(gaudi_copy_free(domain, host));
	OK(gaudi_copy_close(domain));
	FAILS(gaudi_copy_close(domain), EBADF);
}

static void any_interior_address_is_described(void)
{
	uint64_t domain = opened(NULL);
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, 0);
	struct gaudi_copy_memory memory;
	uint32_t type = 0;

	memset(&memory, 0, sizeof(memory));
	memory.size = sizeof(memory);
	OK(gaudi_copy_query(domain, device + LEN - 1, 1, &memory));
	IS(memory.base == device && memory.len == LEN && memory.type == GAUDI_COPY_DEVICE);
	IS(memory.size == sizeof(memory) && !memory.has_bus);
	FAILS(gaudi_copy_query(domain, device + LEN, 1, &memory), ENOENT);
	FAILS(gaudi_copy_query(domain, device + 1, LEN, &memory), EINVAL);
	OK(gaudi_copy_memory_type(device + 5, 8, &type));
	IS(type == GAUDI_COPY_DEVICE);
	OK(gaudi_copy_memory_type(address_of(first), 8, &type));
	IS(type == GAUDI_COPY_HOST);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_memory_type(device, 1, &type));
	IS(type == GAUDI_COPY_HOST);
	OK(gaudi_copy_close(domain));
}

/* Where a mock's dma-buf starts in its file: 0, or the start of a stand-in's window, which the kernel
 * reports as a lock. */
static uint64_t window_start(int fd)
{
	char path[40], row[200];
	unsigned long long start = 0;
	FILE *info;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = fopen(path, "r");
	IS(info != NULL);
	while (fgets(row, sizeof(row), info))
		if (sscanf(row, "lock: %*s OFDLCK ADVISORY READ %*s %*s %llu", &start) == 1)
			break;
	fclose(info);
	return start;
}

static void dmabuf_of_a_range_has_its_bytes(void)
{
	uint64_t domain = opened(NULL);
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_POOLED);
	uint64_t host = allocated(domain, LEN, GAUDI_COPY_HOST, 0);
	struct gaudi_copy_dmabuf part;
	unsigned char *mapped;
	uint64_t at;
	size_t start;

	fill(first, 3);
	OK(gaudi_copy_copy(domain, device, address_of(first), LEN));
	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	OK(gaudi_copy_dmabuf(domain, device + 4321, 1000, &part));
	IS(part.fd >= 0 && part.len == 1000 && part.address == device + 4321);
	at = window_start(part.fd) + part.offset;
	start = at % 4096;
	mapped = (unsigned char *)mmap(NULL, start + part.len, PROT_READ, MAP_SHARED, part.fd,
				       (off_t)(at - start));
	IS(mapped != MAP_FAILED);
	IS(memcmp(mapped + start, first + 4321, 1000) == 0);
	IS(munmap(mapped, start + part.len) == 0);
	IS(close(part.fd) == 0);
	FAILS(gaudi_copy_dmabuf(domain, host, 1, &part), EOPNOTSUPP);
	FAILS(gaudi_copy_dmabuf(domain, device, LEN + 1, &part), EINVAL);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_free(domain, host));
	OK(gaudi_copy_close(domain));
}

static void open_dmabuf_refuses_free(void)
{
	uint64_t domain = opened(NULL);
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_ON_ALLOC);
	struct gaudi_copy_dmabuf part;

	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	OK(gaudi_copy_dmabuf(domain, device, LEN, &part));
	FAILS(gaudi_copy_free(domain, device), EBUSY);
	IS(close(part.fd) == 0);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
}

static void short_and_unknown_fields_are_refused(void)
{
	uint64_t domain = opened(NULL), address = 0;
	struct {
		struct gaudi_copy_alloc_options known;
		uint64_t later;
	} options;

	memset(&options, 0, sizeof(options));
	options.known.type = GAUDI_COPY_DEVICE;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), EINVAL);
	options.known.size = sizeof(options.known) - 1;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), EINVAL);
	options.known.size = sizeof(options);
	options.later = 1;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), E2BIG);
	options.known.size = 1u << 20;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), E2BIG);
	options.known.size = sizeof(options);
	options.later = 0;
	options.known.flags = 4;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), EINVAL);
	options.known.flags = 0;
	options.known.export_mode = 9;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, &address), EINVAL);
	options.known.export_mode = GAUDI_COPY_EXPORT_NEVER;
	FAILS(gaudi_copy_alloc(domain, 8, &options.known, NULL), EINVAL);
	FAILS(gaudi_copy_alloc(domain, 0, &options.known, &address), EINVAL);
	OK(gaudi_copy_alloc(domain, 8, &options.known, &address));
	OK(gaudi_copy_free(domain, address));
	FAILS(gaudi_copy_open(NULL, NULL), EINVAL);
	FAILS(gaudi_copy_open("mock:nothing", &address), EINVAL);
	FAILS(gaudi_copy_query(domain, 1, 1, NULL), EINVAL);
	FAILS(gaudi_copy_dmabuf(domain, 1, 1, NULL), EINVAL);
	FAILS(gaudi_copy_free(domain ^ 1ull << 40, 4096), EBADF);
	FAILS(gaudi_copy_detach(domain), EBADF);
	FAILS(gaudi_copy_unsubscribe(domain), EBADF);
	OK(gaudi_copy_close(domain));
}

struct seen {
	struct gaudi_copy_event events[8];
	unsigned count;
	uint64_t listener;
};

static void on_event(const struct gaudi_copy_event *event, void *user)
{
	struct seen *seen = (struct seen *)user;

	IS(event->size == sizeof(*event));
	if (seen->count < 8)
		seen->events[seen->count] = *event;
	seen->count++;
	FAILS(gaudi_copy_unsubscribe(seen->listener), EDEADLK);
}

static void events_name_allocations_and_frees(void)
{
	uint64_t domain = opened(NULL), device, host;
	struct seen seen;

	memset(&seen, 0, sizeof(seen));
	FAILS(gaudi_copy_subscribe(NULL, &seen, &seen.listener), EINVAL);
	OK(gaudi_copy_subscribe(on_event, &seen, &seen.listener));
	device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	host = allocated(domain, LEN, GAUDI_COPY_HOST, 0);
	OK(gaudi_copy_free(domain, host));
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_unsubscribe(seen.listener));
	FAILS(gaudi_copy_unsubscribe(seen.listener), EBADF);
	device = allocated(domain, 8, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
	IS(seen.count == 2);
	IS(seen.events[0].event == GAUDI_COPY_EVENT_ALLOC && seen.events[0].len == LEN);
	IS(seen.events[1].event == GAUDI_COPY_EVENT_FREE);
	IS(seen.events[0].address == seen.events[1].address);
}

static void key_of_this_process_moves_data(void)
{
	uint64_t domain = opened(NULL), key = 0;
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	unsigned char bytes[GAUDI_COPY_PROCESS_KEY_BYTES];
	struct gaudi_copy_key_info info;
	struct gaudi_copy_dmabuf part;

	FAILS(gaudi_copy_pack(domain, device, bytes, sizeof(bytes) - 1), ENOSPC);
	FAILS(gaudi_copy_pack(domain, device, NULL, sizeof(bytes)), EINVAL);
	FAILS(gaudi_copy_pack(domain, device + LEN, bytes, sizeof(bytes)), ENOENT);
	OK(gaudi_copy_pack(domain, device, bytes, sizeof(bytes)));
	OK(gaudi_copy_attach(domain, bytes, sizeof(bytes), &key));
	memset(&info, 0, sizeof(info));
	info.size = sizeof(info);
	OK(gaudi_copy_key_query(key, &info));
	IS(info.scope == GAUDI_COPY_KEY_PROCESS && info.address == device && info.len == LEN);
	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	FAILS(gaudi_copy_key_dmabuf(key, &part), EOPNOTSUPP);
	fill(first, 9);
	OK(gaudi_copy_put(key, device, address_of(first), LEN));
	memset(second, 0, LEN);
	OK(gaudi_copy_get(key, address_of(second) + 1, device + 1, LEN - 1));
	IS(memcmp(first + 1, second + 1, LEN - 1) == 0);
	FAILS(gaudi_copy_put(key, device + 1, address_of(first), LEN), EFAULT);
	FAILS(gaudi_copy_close(domain), EBUSY);
	OK(gaudi_copy_free(domain, device));
	FAILS(gaudi_copy_put(key, device, address_of(first), 8), ENOENT);
	OK(gaudi_copy_detach(key));
	FAILS(gaudi_copy_attach(domain, bytes, sizeof(bytes), &key), ENOENT);
	for (unsigned at = 0; at < sizeof(bytes); at++) {
		bytes[at] ^= 0x40;
		IS(gaudi_copy_attach(domain, bytes, sizeof(bytes), &key) < 0);
		bytes[at] ^= 0x40;
	}
	OK(gaudi_copy_close(domain));
}

static void key_for_a_nic_keeps_its_region(void)
{
	uint64_t domain = opened(NULL), key = 0;
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	unsigned char bytes[GAUDI_COPY_REMOTE_KEY_BYTES];
	struct gaudi_copy_nic_region region, seen;

	memset(&region, 0, sizeof(region));
	region.size = sizeof(region);
	region.rkey = 0x1234;
	region.address = device + 64;
	region.len = 4096;
	region.iova = 0x7000000;
	region.node = 42;
	memset(region.gid, 7, sizeof(region.gid));
	region.access = GAUDI_COPY_REMOTE_WRITE | GAUDI_COPY_REMOTE_ATOMIC;
	OK(gaudi_copy_pack_remote(domain, &region, bytes, sizeof(bytes)));
	OK(gaudi_copy_attach(domain, bytes, sizeof(bytes), &key));
	memset(&seen, 0, sizeof(seen));
	seen.size = sizeof(seen);
	OK(gaudi_copy_key_region(key, &seen));
	IS(memcmp(&region, &seen, sizeof(seen)) == 0);
	FAILS(gaudi_copy_put(key, device, address_of(first), 8), EOPNOTSUPP);
	OK(gaudi_copy_detach(key));
	region.access = 8;
	FAILS(gaudi_copy_pack_remote(domain, &region, bytes, sizeof(bytes)), EINVAL);
	region.access = 1;
	region.len = LEN;
	FAILS(gaudi_copy_pack_remote(domain, &region, bytes, sizeof(bytes)), EINVAL);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
}

static void key_over_a_socket_serves_another_process(void)
{
	uint64_t domain = opened(NULL), key = 0;
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_POOLED);
	int sockets[2], status = 0;
	char number[16];
	pid_t child;

	fill(first, 5);
	OK(gaudi_copy_copy(domain, device, address_of(first), LEN));
	IS(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	FAILS(gaudi_copy_receive(domain, sockets[0], 1, &key), ETIMEDOUT);
	FAILS(gaudi_copy_send(domain, device, -1, 1), EBADF);
	snprintf(number, sizeof(number), "%d", sockets[1]);
	child = fork();
	IS(child >= 0);
	if (child == 0) {
		execl(self, self, "peer", number, (char *)NULL);
		_exit(99);
	}
	OK(gaudi_copy_send(domain, device, sockets[0], 10000));
	IS(waitpid(child, &status, 0) == child && status == 0);
	memset(second, 0, LEN);
	OK(gaudi_copy_copy(domain, address_of(second), device, LEN));
	fill(first, 6);
	IS(memcmp(first, second, LEN) == 0);
	close(sockets[0]);
	close(sockets[1]);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
}

/* The other process: reads the memory that the parent sent, and writes to it. */
static int peer(int fd)
{
	uint64_t domain = opened("mock:gaudi2?name=copypeer"), key = 0;
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	struct gaudi_copy_key_info info;
	struct gaudi_copy_dmabuf part;

	OK(gaudi_copy_receive(domain, fd, 10000, &key));
	memset(&info, 0, sizeof(info));
	info.size = sizeof(info);
	OK(gaudi_copy_key_query(key, &info));
	IS(info.scope == GAUDI_COPY_KEY_HOST && info.len == LEN);
	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	OK(gaudi_copy_key_dmabuf(key, &part));
	IS(part.len == LEN && close(part.fd) == 0);
	OK(gaudi_copy_get(key, device, info.address, LEN));
	OK(gaudi_copy_copy(domain, address_of(second), device, LEN));
	fill(first, 5);
	IS(memcmp(first, second, LEN) == 0);
	fill(first, 6);
	OK(gaudi_copy_copy(domain, device, address_of(first), LEN));
	OK(gaudi_copy_put(key, info.address, device, LEN));
	OK(gaudi_copy_detach(key));
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
	return 0;
}

static void fork_child_gets_enodev(void)
{
	uint64_t domain = opened(NULL);
	uint64_t device = allocated(domain, LEN, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	pid_t child = fork();
	int status = 0;

	if (child == 0) {
		uint64_t other;
		uint32_t type;

		FAILS(gaudi_copy_open(NULL, &other), ENODEV);
		IS(strstr(gaudi_copy_error(), "parent of this process") != NULL);
		FAILS(gaudi_copy_alloc(domain, 8, NULL, &other), ENODEV);
		FAILS(gaudi_copy_copy(domain, device, address_of(first), 8), ENODEV);
		FAILS(gaudi_copy_memory_type(device, 8, &type), ENODEV);
		FAILS(gaudi_copy_free(domain, device), ENODEV);
		FAILS(gaudi_copy_close(domain), ENODEV);
		_exit(0);
	}
	IS(waitpid(child, &status, 0) == child && status == 0);
	OK(gaudi_copy_free(domain, device));
	OK(gaudi_copy_close(domain));
}

static uint64_t shared_domain;

static void *copy_in_thread(void *argument)
{
	uint64_t seed = address_of(argument);
	uint64_t device = allocated(shared_domain, 8192, GAUDI_COPY_DEVICE, GAUDI_COPY_EXPORT_NEVER);
	unsigned char bytes[8192], back[8192];

	for (unsigned round = 0; round < 50; round++) {
		memset(bytes, (int)(seed + round), sizeof(bytes));
		OK(gaudi_copy_copy(shared_domain, device, address_of(bytes), sizeof(bytes)));
		OK(gaudi_copy_copy(shared_domain, address_of(back), device, sizeof(back)));
		IS(memcmp(bytes, back, sizeof(back)) == 0);
	}
	OK(gaudi_copy_free(shared_domain, device));
	return NULL;
}

static void threads_share_a_domain(void)
{
	pthread_t threads[4];

	shared_domain = opened(NULL);
	for (unsigned at = 0; at < 4; at++)
		IS(pthread_create(&threads[at], NULL, copy_in_thread, (void *)(uintptr_t)(at * 60)) == 0);
	for (unsigned at = 0; at < 4; at++)
		IS(pthread_join(threads[at], NULL) == 0);
	OK(gaudi_copy_close(shared_domain));
}

/* A counter counts what succeeded, and nothing else. */
static void counters_count_copies_and_exports(void)
{
	struct gaudi_copy_counters before, after;
	struct gaudi_copy_dmabuf part;
	uint64_t domain = opened(NULL), address = allocated(domain, LEN, GAUDI_COPY_DEVICE, 0);
	char bytes[100] = { 0 };

	memset(&before, 0, sizeof(before));
	before.size = sizeof(before);
	after = before;
	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	OK(gaudi_copy_count(&before));
	OK(gaudi_copy_copy(domain, address, address_of(bytes), sizeof(bytes)));
	FAILS(gaudi_copy_copy(domain, address_of(bytes), address_of(bytes), 1), EOPNOTSUPP);
	OK(gaudi_copy_dmabuf(domain, address, LEN, &part));
	FAILS(gaudi_copy_dmabuf(domain, address, LEN + 1, &part), EINVAL);
	OK(gaudi_copy_count(&after));
	IS(after.copies - before.copies == 1);
	IS(after.copied_bytes - before.copied_bytes == sizeof(bytes));
	IS(after.exports - before.exports == 1);
	FAILS(gaudi_copy_count(NULL), EINVAL);
	close(part.fd);
	OK(gaudi_copy_free(domain, address));
	OK(gaudi_copy_close(domain));
}

static volatile int receive_ended;

static void *receive_in_thread(void *argument)
{
	uint64_t key = 0, domain = *(uint64_t *)argument;
	int sockets[2], old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	IS(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
	FAILS(gaudi_copy_receive(domain, sockets[0], 1, &key), ETIMEDOUT);
	receive_ended = 1;
	pthread_testcancel();
	IS(!"the thread is cancelled");
	return NULL;
}

/* A pending cancellation waits for the end of the function: glibc cannot unwind the library. */
static void cancelled_thread_ends_after_the_call(void)
{
	uint64_t domain = opened("mock:gaudi2?name=cancelled");
	void *end = NULL;
	pthread_t thread;

	IS(pthread_create(&thread, NULL, receive_in_thread, &domain) == 0);
	IS(pthread_join(thread, &end) == 0);
	IS(end == PTHREAD_CANCELED && receive_ended);
	OK(gaudi_copy_close(domain));
}

#define CASE(name) (name(), printf("ok %s\n", #name), fflush(stdout))

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 3 && strcmp(argv[1], "peer") == 0)
		return peer(atoi(argv[2]));
	CASE(copies_keep_data);
	CASE(any_interior_address_is_described);
	CASE(dmabuf_of_a_range_has_its_bytes);
	CASE(open_dmabuf_refuses_free);
	CASE(short_and_unknown_fields_are_refused);
	CASE(events_name_allocations_and_frees);
	CASE(key_of_this_process_moves_data);
	CASE(key_for_a_nic_keeps_its_region);
	CASE(key_over_a_socket_serves_another_process);
	CASE(counters_count_copies_and_exports);
	CASE(fork_child_gets_enodev);
	CASE(threads_share_a_domain);
	CASE(cancelled_thread_ends_after_the_call);
	return 0;
}
