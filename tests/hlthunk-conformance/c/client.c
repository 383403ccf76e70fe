/*
 * A C program, linked with -lhl-thunk like the library's clients. Each case runs in a separate
 * process: `client CASE` exits with 0, or prints the reason for the failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hlthunk.h>

#define CHECK(condition)                                                                   \
	do {                                                                               \
		if (!(condition)) {                                                        \
			printf("%s is false; errno %d (%s)\n", #condition, errno,          \
			       strerror(errno));                                           \
			return 1;                                                          \
		}                                                                          \
	} while (0)

static int device = -1;

static int conventions(void)
{
	struct hlthunk_dram_usage_info usage;

	errno = 0;
	CHECK(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL) == -1 && errno == EBUSY);
	errno = 0;
	CHECK(hlthunk_device_memory_free(device, 77) == -EINVAL && errno == EINVAL);
	errno = 0;
	CHECK(hlthunk_device_memory_alloc(device, 0, 0, false, false) == 0 && errno == EINVAL);
	CHECK(hlthunk_get_dram_usage(device, NULL) == -EINVAL);
	CHECK(hlthunk_get_dram_usage(-1, &usage) == -EBADF && errno == EBADF);
	CHECK(hlthunk_get_device_count(HLTHUNK_DEVICE_INVALID) == -EINVAL);
	return 0;
}

static int discovery(void)
{
	char bus_id[13];
	int control;

	CHECK(hlthunk_get_pci_bus_id_from_fd(device, bus_id, sizeof(bus_id)) == 0);
	CHECK(strlen(bus_id) == 12);
	control = hlthunk_open_control(0, bus_id);
	CHECK(control >= 0);
	CHECK(hlthunk_get_device_name_from_fd(control) == HLTHUNK_DEVICE_GAUDI2);
	CHECK(hlthunk_close(control) == 0);
	CHECK(hlthunk_get_device_count(HLTHUNK_DEVICE_GAUDI2) == 1);
	return 0;
}

static int information(void)
{
	struct hlthunk_hw_ip_info ip;
	struct hlthunk_sync_manager_info manager;
	struct hlthunk_engines_idle_info idle;

	memset(&ip, 0xff, sizeof(ip));
	CHECK(hlthunk_get_hw_ip_info(device, &ip) == 0);
	CHECK(ip.device_id == 0x1020 && ip.dram_enabled == 1);
	CHECK(ip.first_available_interrupt_id == 48 && ip.number_of_user_interrupts == 64);
	CHECK(ip.dram_page_size == ip.device_mem_alloc_default_page_size);
	CHECK(hlthunk_get_sync_manager_info(device, 0, &manager) == 0);
	CHECK(manager.first_available_sync_object > 0 && manager.first_available_monitor > 0);
	CHECK(hlthunk_get_busy_engines_mask(device, &idle) == 0 && idle.is_idle == 1);
	CHECK(hlthunk_is_device_idle(device));
	return 0;
}

static int buffers(void)
{
	uint64_t handle, va;
	char *memory;

	CHECK(hlthunk_request_mapped_command_buffer(device, 4096, &handle) == 0);
	CHECK(hlthunk_get_mapped_cb_device_va_by_handle(device, handle, &va) == 0 && va != 0);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)handle);
	CHECK(memory != MAP_FAILED);
	CHECK(memory[0] == 0 && memory[4095] == 0);
	memory[4095] = 7;
	CHECK(munmap(memory, 4096) == 0);
	CHECK(hlthunk_destroy_command_buffer(device, handle) == 0);
	CHECK(hlthunk_destroy_command_buffer(device, handle) == -EINVAL && errno == EINVAL);
	return 0;
}

/* Executes packets in a mapped command buffer. */
static int run(const uint32_t *packets, uint32_t size)
{
	struct hl_cs_chunk chunk;
	struct hlthunk_cs_in in;
	struct hlthunk_cs_out out;
	uint64_t handle, va;
	uint32_t status = 77;
	void *memory;

	CHECK(hlthunk_request_mapped_command_buffer(device, size, &handle) == 0);
	CHECK(hlthunk_get_mapped_cb_device_va_by_handle(device, handle, &va) == 0);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)handle);
	CHECK(memory != MAP_FAILED);
	memcpy(memory, packets, size);
	memset(&chunk, 0, sizeof(chunk));
	chunk.cb_handle = va;
	chunk.cb_size = size;
	chunk.queue_index = 0; /* the first stream of the first PCI engine */
	chunk.cs_chunk_flags = HL_CS_CHUNK_FLAGS_USER_ALLOC_CB;
	memset(&in, 0, sizeof(in));
	in.chunks_execute = &chunk;
	in.num_chunks_execute = 1;
	CHECK(hlthunk_command_submission(device, &in, &out) == 0);
	CHECK(out.status == HL_CS_STATUS_SUCCESS && out.seq > 0);
	CHECK(hlthunk_wait_for_cs(device, out.seq, 10000000, &status) == 0);
	CHECK(status == HL_WAIT_CS_STATUS_COMPLETED);
	CHECK(munmap(memory, 4096) == 0);
	CHECK(hlthunk_destroy_command_buffer(device, handle) == 0);
	return 0;
}

static int submission(void)
{
	const uint32_t nop[2] = { 0, 0x0a000000 };

	return run(nop, sizeof(nop));
}

static int copies(void)
{
	uint64_t memory, va, up_va, down_va, size = 4096;
	uint32_t packets[6];
	char *up, *down;

	CHECK(posix_memalign((void **)&up, 4096, size) == 0);
	CHECK(posix_memalign((void **)&down, 4096, size) == 0);
	memset(up, 0x5a, size);
	memset(down, 0, size);
	memory = hlthunk_device_memory_alloc(device, size, 0, false, false);
	CHECK(memory != 0);
	va = hlthunk_device_memory_map(device, memory, 0);
	up_va = hlthunk_host_memory_map(device, up, 0, size);
	down_va = hlthunk_host_memory_map(device, down, 0, size);
	CHECK(va != 0 && up_va != 0 && down_va != 0);
	packets[0] = (uint32_t)size;
	packets[1] = 0x09000000; /* LIN_DMA */
	memcpy(&packets[2], &up_va, 8);
	memcpy(&packets[4], &va, 8);
	CHECK(run(packets, sizeof(packets)) == 0);
	memcpy(&packets[2], &va, 8);
	memcpy(&packets[4], &down_va, 8);
	CHECK(run(packets, sizeof(packets)) == 0);
	CHECK(memcmp(up, down, size) == 0);
	CHECK(hlthunk_memory_unmap(device, up_va) == 0);
	CHECK(hlthunk_memory_unmap(device, down_va) == 0);
	CHECK(hlthunk_device_memory_free(device, memory) == -EINVAL && errno == EINVAL);
	CHECK(hlthunk_memory_unmap(device, va) == 0);
	CHECK(hlthunk_device_memory_free(device, memory) == 0);
	free(up);
	free(down);
	return 0;
}

static int exports(void)
{
	uint64_t memory = hlthunk_device_memory_alloc(device, 4096, 0, false, false);
	uint64_t va = hlthunk_device_memory_map(device, memory, 0);
	int fd;

	CHECK(memory != 0 && va != 0);
	CHECK(hlthunk_device_mapped_memory_export_dmabuf_fd(device, va, 4096, 0, O_RDWR) == -EINVAL);
	fd = hlthunk_device_mapped_memory_export_dmabuf_fd(device, va, 4096, 4096, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(hlthunk_memory_unmap(device, va) == -EINVAL);
	CHECK(close(fd) == 0);
	CHECK(hlthunk_memory_unmap(device, va) == 0);
	CHECK(hlthunk_device_memory_free(device, memory) == 0);
	return 0;
}

static int duplicates(void)
{
	struct hlthunk_dram_usage_info usage;
	int twin = dup(device);

	CHECK(twin >= 0 && close(device) == 0);
	CHECK(hlthunk_get_dram_usage(twin, &usage) == 0 && usage.ctx_dram_mem == 0);
	CHECK(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL) == -1);
	device = twin;
	return 0;
}

static int texts(void)
{
	char *version = hlthunk_get_version();
	int major, minor, patch;

	CHECK(version != NULL && sscanf(version, "%d.%d.%d-", &major, &minor, &patch) == 3);
	hlthunk_free(version);
	return 0;
}

static int timeouts(void)
{
	uint32_t status = 77;
	uint64_t word = 0;

	CHECK(hlthunk_wait_for_interrupt(device, &word, 1, 48, 1000, &status) == 0);
	CHECK(status == HL_WAIT_CS_STATUS_BUSY);
	CHECK(hlthunk_wait_for_interrupt(device, &word, 0, 48, 1000, &status) == 0);
	CHECK(status == HL_WAIT_CS_STATUS_COMPLETED);
	CHECK(hlthunk_wait_for_cs(device, UINT64_MAX, 0, &status) == -EINVAL && errno == EINVAL);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} cases[] = {
	{ "conventions", conventions },
	{ "discovery", discovery },
	{ "information", information },
	{ "buffers", buffers },
	{ "submission", submission },
	{ "copies", copies },
	{ "exports", exports },
	{ "duplicates", duplicates },
	{ "texts", texts },
	{ "timeouts", timeouts },
};

int main(int argc, char **argv)
{
	size_t nth;
	int tries, code;

	for (nth = 0; nth < sizeof(cases) / sizeof(cases[0]); nth++) {
		if (argc != 2 || strcmp(argv[1], cases[nth].name))
			continue;
		/* The driver resets the device when its last user closes it. */
		for (tries = 0; tries < 600 && device < 0; tries++) {
			device = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, NULL);
			if (device < 0 && errno != EBUSY && errno != EAGAIN)
				break;
			if (device < 0)
				usleep(100000);
		}
		CHECK(device >= 0);
		code = cases[nth].run();
		CHECK(hlthunk_close(device) == 0);
		return code;
	}
	printf("unknown case\n");
	return 2;
}
