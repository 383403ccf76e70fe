/* libgaudi_copy: Gaudi memory for programs in C.
 *
 * Generated from drivers/copy/c: SNAPSHOTS=overwrite cargo test -p gaudi-copy-c header
 *
 * A function returns 0 or a negative errno; gaudi_copy_error has the cause in words. A domain, a
 * key and a listener are numbers, never 0; one that is closed or of another kind fails with EBADF.
 * NULL fails with EINVAL where nothing else is documented. An address is one of device memory or
 * of the program.
 *
 * Every structure starts with its size: set it to sizeof, and all other fields that are not used
 * to 0. A program works with a library of an older or newer release. A size below that of the first
 * release fails with EINVAL; a field that is set and that the library does not know with E2BIG.
 *
 * Every function may be called by any thread. In a fork child of a process that used the library
 * each fails with ENODEV; the child can exec.
 */
#ifndef GAUDI_COPY_H
#define GAUDI_COPY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Host memory. */
#define GAUDI_COPY_HOST 1u

/** Device memory. */
#define GAUDI_COPY_DEVICE 2u

/** The first gaudi_copy_dmabuf exports the memory. It has pages of its own. */
#define GAUDI_COPY_EXPORT_ON_DEMAND 0u

/** The memory is not exported. It shares the driver's pages with other memory. */
#define GAUDI_COPY_EXPORT_NEVER 1u

/** As ON_DEMAND, in pages that it shares with other memory of this kind. Their dma-buf is one:
 * an importer can access all of it, and memory that an importer holds can be freed.
 */
#define GAUDI_COPY_EXPORT_POOLED 2u

/** The allocation exports the memory, and fails if it cannot be exported. */
#define GAUDI_COPY_EXPORT_ON_ALLOC 3u

/** The memory was allocated. The program does not know its address yet. */
#define GAUDI_COPY_EVENT_ALLOC 1u

/** The memory is about to be freed. If that fails, GAUDI_COPY_EVENT_ALLOC follows. */
#define GAUDI_COPY_EVENT_FREE 2u

/** A key for the process that packed it. */
#define GAUDI_COPY_KEY_PROCESS 1u

/** A key that came over a socket from a process of this machine. */
#define GAUDI_COPY_KEY_HOST 2u

/** A key for a NIC of another node. */
#define GAUDI_COPY_KEY_REMOTE 3u

/** Bytes of a key for this process. */
#define GAUDI_COPY_PROCESS_KEY_BYTES 64u

/** Bytes of a key for a NIC of another node. */
#define GAUDI_COPY_REMOTE_KEY_BYTES 128u

/** A peer may write. */
#define GAUDI_COPY_REMOTE_WRITE 1u

/** A peer may read. */
#define GAUDI_COPY_REMOTE_READ 2u

/** A peer may use atomic operations. */
#define GAUDI_COPY_REMOTE_ATOMIC 4u

/** Options of an allocation. */
struct gaudi_copy_alloc_options {
	/** sizeof of the structure. */
	uint32_t size;
	/** GAUDI_COPY_DEVICE or GAUDI_COPY_HOST. */
	uint32_t type;
	/** GAUDI_COPY_EXPORT_...; 0 for host memory. */
	uint32_t export_mode;
	/** 0. */
	uint32_t flags;
	/** A power of two up to 1 MiB, of host memory up to 4096; 0 counts as 1. */
	uint64_t align;
	/** The page of the driver in bytes; 0 for its default, and for host memory. */
	uint64_t page_bytes;
	/** The wanted device address, a multiple of the page; 0 for any. */
	uint64_t hint;
};

/** The memory around an address. */
struct gaudi_copy_memory {
	/** sizeof of the structure. */
	uint32_t size;
	/** GAUDI_COPY_DEVICE or GAUDI_COPY_HOST. */
	uint32_t type;
	/** Its first address. */
	uint64_t base;
	/** Its bytes. */
	uint64_t len;
	/** The index of the card. */
	uint32_t device;
	/** 1 if the bus fields are set: 0 for a mock. */
	uint32_t has_bus;
	/** PCI domain of the card. */
	uint32_t bus_domain;
	/** PCI bus. */
	uint32_t bus;
	/** PCI device. */
	uint32_t bus_device;
	/** PCI function. */
	uint32_t bus_function;
};

/** A dma-buf of a range of memory, as ibv_reg_dmabuf_mr and FI_MR_DMABUF take it. */
struct gaudi_copy_dmabuf {
	/** sizeof of the structure. */
	uint32_t size;
	/** A descriptor of the program, close-on-exec. Close it. */
	int32_t fd;
	/** Bytes from the dma-buf's start to the address. */
	uint64_t offset;
	/** Bytes of the range. */
	uint64_t len;
	/** The address of the range: the iova of a region. */
	uint64_t address;
};

/** Device memory appeared, or is about to disappear. */
struct gaudi_copy_event {
	/** sizeof of the structure. */
	uint32_t size;
	/** GAUDI_COPY_EVENT_... */
	uint32_t event;
	/** The first address. */
	uint64_t address;
	/** Bytes. */
	uint64_t len;
	/** The index of the card. */
	uint32_t device;
	/** 0. */
	uint32_t reserved;
};

/** A region of memory that the program registered with a NIC. */
struct gaudi_copy_nic_region {
	/** sizeof of the structure. */
	uint32_t size;
	/** The key that a peer's NIC sends. */
	uint32_t rkey;
	/** The region's first byte, as the program sees it. */
	uint64_t address;
	/** Bytes. */
	uint64_t len;
	/** The address of its first byte for a NIC. */
	uint64_t iova;
	/** GUID of the NIC's node. */
	uint64_t node;
	/** GID of the NIC's port. */
	uint8_t gid[16];
	/** GAUDI_COPY_REMOTE_... */
	uint32_t access;
	/** 0. */
	uint32_t reserved;
};

/** What an attached key names. */
struct gaudi_copy_key_info {
	/** sizeof of the structure. */
	uint32_t size;
	/** GAUDI_COPY_KEY_... */
	uint32_t scope;
	/** GAUDI_COPY_DEVICE or GAUDI_COPY_HOST. */
	uint32_t type;
	/** 0. */
	uint32_t reserved;
	/** The first address in the process that owns the memory. */
	uint64_t address;
	/** Bytes. */
	uint64_t len;
};

/** What this process did with the library. */
struct gaudi_copy_counters {
	/** sizeof of the structure. */
	uint32_t size;
	/** 0. */
	uint32_t reserved;
	/** Copies: of gaudi_copy_copy, gaudi_copy_put and gaudi_copy_get. */
	uint64_t copies;
	/** Bytes of them. */
	uint64_t copied_bytes;
	/** Descriptors that gaudi_copy_dmabuf returned. */
	uint64_t exports;
};

/** Opens the memory domain of a card. 'spec' names it, such as "kernel:0" or "mock:gaudi2";
 * NULL for the card that the environment selects. The first allocation or copy opens the card.
 *
 * EINVAL: the spec or a variable is invalid.
 */
int gaudi_copy_open(const char *spec, uint64_t *domain);

/** Closes a domain, and the card, if no other domain of it is open.
 *
 * EBUSY: memory of the domain or attached keys exist, or a call uses it. After any other
 * failure, which is one of the card, the domain is closed.
 */
int gaudi_copy_close(uint64_t domain);

/** Allocates 'len' bytes. 'options' is NULL for device memory that can be exported. Host memory
 * is zeroed, pinned and mapped for the card.
 *
 * EINVAL: an option is invalid, or 'len' is 0. ENOMEM. The error of the card's open.
 */
int gaudi_copy_alloc(uint64_t domain,
	uint64_t len, const struct gaudi_copy_alloc_options *options, uint64_t *address);

/** Frees memory by its first address.
 *
 * ENOENT: the domain has no allocation there. EBUSY: a copy or an open dma-buf holds it.
 * If the card was reset or removed, the call may fail and the allocation ends nevertheless: a
 * second call fails with ENOENT. The driver frees the memory when the card closes.
 */
int gaudi_copy_free(uint64_t domain, uint64_t address);

/** Copies 'len' bytes from 'src' to 'dst', and waits for them. One of them is device memory of
 * any domain of this process; the other is memory of a domain or of the program.
 *
 * EOPNOTSUPP: both are host memory. EINVAL: a range is NULL, leaves its allocation, or the
 * ranges overlap. EFAULT: an address is neither device memory nor one of a program.
 */
int gaudi_copy_copy(uint64_t domain, uint64_t dst, uint64_t src, uint64_t len);

/** Stores in 'type' whether the 'len' bytes at 'address' are device memory or host memory.
 * Takes no lock unless GAUDI_MEMTYPE_CACHE is n. A length of 0 counts as 1.
 */
int gaudi_copy_memory_type(uint64_t address, uint64_t len, uint32_t *type);

/** Describes the memory of the domain around 'len' bytes at 'address'. A length of 0 counts as
 * 1.
 *
 * ENOENT: the domain has no memory there. EINVAL: the range leaves its memory.
 */
int gaudi_copy_query(uint64_t domain,
	uint64_t address, uint64_t len, struct gaudi_copy_memory *memory);

/** Exports 'len' bytes at 'address' as a dma-buf. The program closes the descriptor. A length
 * of 0 counts as 1.
 *
 * ENOENT: the domain has no memory there. EINVAL: it was allocated with
 * GAUDI_COPY_EXPORT_NEVER. EOPNOTSUPP: it is host memory.
 */
int gaudi_copy_dmabuf(uint64_t domain,
	uint64_t address, uint64_t len, struct gaudi_copy_dmabuf *dmabuf);

/** Reports what this process did. A transfer of a NIC without a copy changes no counter but
 * 'exports'.
 */
int gaudi_copy_count(struct gaudi_copy_counters *counters);

/** Calls 'callback' with 'user' for each allocation and each free of device memory of this
 * process, in the thread that allocates or frees. The callback must not free memory, and must
 * not end by longjmp(3) or an exception.
 *
 * EINVAL: 'callback' is NULL.
 */
int gaudi_copy_subscribe(void (*callback)(const struct gaudi_copy_event *event,
	void *user), void *user, uint64_t *listener);

/** Ends the calls of a callback. When the function returns, none runs and none will.
 *
 * EDEADLK: this thread is in the callback.
 */
int gaudi_copy_unsubscribe(uint64_t listener);

/** Packs the key of the allocation at 'address' for this process. Writes
 * GAUDI_COPY_PROCESS_KEY_BYTES at 'key', where there is room for 'room' bytes.
 *
 * ENOENT: the program allocated no memory there. ENOSPC: too little room.
 */
int gaudi_copy_pack(uint64_t domain, uint64_t address, uint8_t *key, uint64_t room);

/** Packs the key of a region for NICs of other nodes: GAUDI_COPY_REMOTE_KEY_BYTES at 'key',
 * where there is room for 'room' bytes.
 *
 * ENOENT: the program allocated no memory at the region's address. EINVAL: the region leaves
 * the allocation. ENOSPC: too little room.
 */
int gaudi_copy_pack_remote(uint64_t domain,
	const struct gaudi_copy_nic_region *region, uint8_t *key, uint64_t room);

/** Attaches the 'len' bytes of a packed key. Its scope decides what it can do: gaudi_copy_put
 * and gaudi_copy_get for one of this process, gaudi_copy_key_region for one of another node.
 * The bytes may come from anywhere.
 *
 * EPROTO: a field is invalid. EACCES: another process packed the key. ENOENT: the memory was
 * freed.
 */
int gaudi_copy_attach(uint64_t domain, const uint8_t *key, uint64_t len, uint64_t *attached);

/** Passes the allocation at 'address' to the process at the other end of a Unix stream socket,
 * with a descriptor of its dma-buf. Waits at most 'timeout_ms'.
 *
 * ENOENT: the program allocated no memory there. EBADF: 'socket' is not a descriptor.
 * ETIMEDOUT: a part may have been sent; close the socket. The error of the export or of
 * sendmsg(2).
 */
int gaudi_copy_send(uint64_t domain, uint64_t address, int32_t socket, uint32_t timeout_ms);

/** Receives what gaudi_copy_send passed, and attaches it. Waits at most 'timeout_ms' for each
 * of the two parts.
 *
 * EPROTO: a part is malformed. ETIMEDOUT, ECONNRESET. After a failure close the socket.
 */
int gaudi_copy_receive(uint64_t domain, int32_t socket, uint32_t timeout_ms, uint64_t *attached);

/** Describes an attached key. */
int gaudi_copy_key_query(uint64_t key, struct gaudi_copy_key_info *info);

/** Returns the dma-buf of a key that gaudi_copy_receive attached: to register it with a NIC.
 * The program closes the descriptor.
 *
 * EOPNOTSUPP: the key has another scope.
 */
int gaudi_copy_key_dmabuf(uint64_t key, struct gaudi_copy_dmabuf *dmabuf);

/** Returns the region of a key of another node.
 *
 * EOPNOTSUPP: the key has another scope.
 */
int gaudi_copy_key_region(uint64_t key, struct gaudi_copy_nic_region *region);

/** Copies 'len' bytes at 'src' to 'address' of the memory that a key names, and waits for them.
 * The address is one of the process that owns the memory.
 *
 * EFAULT: the range leaves the memory of the key. ENOENT: it was freed. EOPNOTSUPP: the key is
 * for a NIC, both ends are host memory, or a processor cannot map the memory of another
 * process.
 */
int gaudi_copy_put(uint64_t key, uint64_t address, uint64_t src, uint64_t len);

/** Copies 'len' bytes at 'address' of the memory that a key names to 'dst', and waits for them.
 *
 * As gaudi_copy_put.
 */
int gaudi_copy_get(uint64_t key, uint64_t dst, uint64_t address, uint64_t len);

/** Detaches a key. */
int gaudi_copy_detach(uint64_t key);

/** Describes the last failure of a function of this library in this thread: cause, evidence, next
 * step. The text is empty if none failed, and valid until the next failure in this thread.
 */
const char *gaudi_copy_error(void);

#ifdef __cplusplus
}
#endif

#endif /* GAUDI_COPY_H */
