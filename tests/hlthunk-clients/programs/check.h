/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Shared by the programs: checks, and access to a dma-buf's memory as by a NIC. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Exits with a message if the condition is false. */
#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: not true: %s (errno %s)\n", __FILE__,     \
				__LINE__, #condition, strerror(errno));                   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* Compares two values, and prints them if they differ. */
#define CHECK_EQUAL(seen, expected)                                                       \
	do {                                                                              \
		long long seen_ = (long long)(seen), expected_ = (long long)(expected);   \
		if (seen_ != expected_) {                                                 \
			fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__,   \
				__LINE__, #seen, seen_, expected_);                       \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* Fills bytes with a pattern that differs from each of its shifts. */
static inline void pattern(unsigned char *bytes, size_t size, uint32_t seed)
{
	uint32_t state = seed * 2654435761u + 1;

	for (size_t i = 0; i < size; i++) {
		state = state * 1664525u + 1013904223u;
		bytes[i] = state >> 24;
	}
}

/*
 * Returns the offset of a dma-buf's first byte in its file. It is 0, except for the mock's
 * replacement of a dma-buf, where a lock marks the exported range.
 */
static inline off_t start_of(int dmabuf)
{
	char path[64], line[256];
	unsigned long long start = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", dmabuf);
	FILE *file = fopen(path, "r");
	CHECK(file != NULL);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "lock: %*d: OFDLCK ADVISORY READ %*d %*s %llu", &start) == 1)
			break;
	fclose(file);
	return start;
}

/* Maps part of a dma-buf, like a NIC that registers it. */
static inline unsigned char *nic_map_at(int dmabuf, off_t offset, size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf,
			    start_of(dmabuf) + offset);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static inline unsigned char *nic_map(int dmabuf, size_t size)
{
	return nic_map_at(dmabuf, 0, size);
}

static inline void nic_unmap(unsigned char *memory, size_t size)
{
	CHECK_EQUAL(munmap(memory, size), 0);
}

#endif
