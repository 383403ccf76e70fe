/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What the programs share: checks, and memory behind a dma-buf as a NIC sees it. */

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

/* Ends the program with the condition that is not true. */
#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: not true: %s (errno %s)\n", __FILE__,     \
				__LINE__, #condition, strerror(errno));                   \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* Two values, which are printed if they differ. */
#define CHECK_EQUAL(seen, expected)                                                       \
	do {                                                                              \
		long long seen_ = (long long)(seen), expected_ = (long long)(expected);   \
		if (seen_ != expected_) {                                                 \
			fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__,   \
				__LINE__, #seen, seen_, expected_);                       \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* The bytes of a pattern, which no shift of it matches. */
static inline void pattern(unsigned char *bytes, size_t size, uint32_t seed)
{
	uint32_t state = seed * 2654435761u + 1;

	for (size_t i = 0; i < size; i++) {
		state = state * 1664525u + 1013904223u;
		bytes[i] = state >> 24;
	}
}

/*
 * Where a dma-buf begins in its file: 0, unless it is the mock's stand-in for one, whose lock is
 * the part that was exported.
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

/* Maps a part of a dma-buf, as a NIC that registers it. */
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
