/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The C interface of libhl-thunk.so, for programs written for the vendor's library.
 *
 * Names, values and layouts are those of the vendor's header of the Gaudi3 release, which contains
 * everything in the header of 2023. tests/hlthunk-abi compares every declaration with a table of
 * facts.
 *
 * Conventions:
 * - A file descriptor `fd` is that of a compute node, from hlthunk_open(), unless a function also
 *   accepts the control node. It is a real descriptor: it can be duplicated, passed over a socket
 *   and mapped with mmap(2).
 * - A function that returns int returns 0 or another result on success and a negative errno value
 *   on failure. The open functions, and hlthunk_open() if busid is NULL, can also return -1. errno
 *   is set in each case.
 * - A function that returns a handle or an address as uint64_t returns 0 on failure and sets errno.
 * - Functions of the Gaudi3 release are marked. They fail with an errno value if the driver lacks
 *   the operation.
 * - Times are in microseconds unless stated otherwise.
 */

#ifndef HLTHUNK_H
#define HLTHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/if_ether.h>

#include "drm/habanalabs_accel.h"

#ifndef HL_CS_FLAGS_ENGINES_COMMAND
#error "hlthunk.h needs drm/habanalabs_accel.h: misc/habanalabs.h of Linux 6.1 was included first"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define hlthunk_public __attribute__((visibility("default")))

/*
 * Names of the Gaudi3 release, for systems whose drm/habanalabs_accel.h is the kernel's.
 */
#ifndef HL_IOCTL_NIC

#define HL_INFO_MAC_ADDR_MAX_NUM 128
#define HL_NIC_USER_BP_OFFS_MAX 16
#define HL_NIC_FNA_CMPL_ADDR_NUM 2

enum hl_nic_mem_id {
	HL_NIC_MEM_HOST = 1,
	HL_NIC_MEM_DEVICE = 2
};

enum hl_nic_encap_type {
	HL_NIC_ENCAP_NONE = 0,
	HL_NIC_ENCAP_OVER_IPV4 = 1,
	HL_NIC_ENCAP_OVER_UDP = 2
};

#endif /* HL_IOCTL_NIC */

/* ----------------------------------------------------------------------------------------
 * Devices and nodes
 * ---------------------------------------------------------------------------------------- */

/* Node indices are below this limit. */
#define HLTHUNK_MAX_MINOR 256

/* printf(3) formats of a node's path; the argument is the node's index. */
#define HLTHUNK_DEV_NAME_PRIMARY "/dev/accel/accel%d"
#define HLTHUNK_DEV_NAME_CONTROL "/dev/accel/accel_controlD%d"
#define HLTHUNK_DEV_NAME_PRIMARY_LEGACY "/dev/hl%d"
#define HLTHUNK_DEV_NAME_CONTROL_LEGACY "/dev/hl_controlD%d"
#define HLTHUNK_DEV_NAME_XE "/dev/dri/renderD%d"

/* PCI device id of a device that the Gaudi3 release names FS1. */
#define PCI_IDS_FS1 0x0b73

enum hlthunk_node_type {
	HLTHUNK_NODE_PRIMARY = 0,
	HLTHUNK_NODE_CONTROL = 1,
	HLTHUNK_NODE_XE = 2,
	HLTHUNK_NODE_MAX = 3
};

/* A chip. The header of 2023 reserves values under the PLACEHOLDER names. */
enum hlthunk_device_name {
	HLTHUNK_DEVICE_GOYA = 0,
	HLTHUNK_DEVICE_GRECO = 1,
	HLTHUNK_DEVICE_PLACEHOLDER1 = 1,
	HLTHUNK_DEVICE_GAUDI = 2,
	HLTHUNK_DEVICE_INVALID = 3,
	HLTHUNK_DEVICE_DONT_CARE = 4,
	HLTHUNK_DEVICE_GAUDI2 = 5,
	HLTHUNK_DEVICE_GAUDI_HL2000M = 6,
	HLTHUNK_DEVICE_PLACEHOLDER2 = 6,
	HLTHUNK_DEVICE_GAUDI3 = 7,
	HLTHUNK_DEVICE_PLACEHOLDER3 = 7,
	HLTHUNK_DEVICE_GAUDI2B = 8,
	HLTHUNK_DEVICE_PLACEHOLDER4 = 8,
	HLTHUNK_DEVICE_FS1 = 9,
	HLTHUNK_DEVICE_GAUDI2C = 10,
	HLTHUNK_DEVICE_GAUDI2D = 11,
	HLTHUNK_DEVICE_MAX = 12
};

/*
 * Opens the compute node of the first free device of a kind, or of the device at a PCI address
 * (0000:b3:00.0). HLTHUNK_DEVICE_DONT_CARE selects any kind. Returns -1 if busid is NULL and no
 * device can be opened, -EINVAL if no device has the bus id, and -errno if that device cannot be
 * opened: EBUSY if it is already open, EAGAIN during a reset.
 */
hlthunk_public int hlthunk_open(enum hlthunk_device_name device_name, const char *busid);

/* Opens the compute node of the device with this OCP module number. */
hlthunk_public int hlthunk_open_by_module_id(uint32_t module_id);

/*
 * Opens a control node, by its index or, if busid is not NULL, by PCI address. Any number of
 * processes can open it. It supports only the information functions.
 */
hlthunk_public int hlthunk_open_control(int dev_id, const char *busid);

/*
 * Opens the control node of the first device of a kind or, if busid is not NULL, of the device at a
 * PCI address.
 */
hlthunk_public int hlthunk_open_control_by_name(
	enum hlthunk_device_name device_name, const char *busid);

/* Opens the control node of the device with this module number; -EBADF if there is none. */
hlthunk_public int hlthunk_open_control_by_module_id(uint32_t module_id);

/* Opens the control node of the device at a PCI address; -EBADF if there is none. */
hlthunk_public int hlthunk_open_control_by_bus_id(const char *busid);

/*
 * Closes a descriptor of either node. The device stays in use while a duplicate, a mapping or an
 * exported dma-buf exists.
 */
hlthunk_public int hlthunk_close(int fd);

/*
 * Returns the number of devices of a kind, or of all devices for HLTHUNK_DEVICE_DONT_CARE.
 */
hlthunk_public int hlthunk_get_device_count(enum hlthunk_device_name device_name);

/* Returns the chip, or HLTHUNK_DEVICE_INVALID. */
hlthunk_public enum hlthunk_device_name hlthunk_get_device_name_from_fd(int fd);

/* Returns the PCI device id, or 0. */
hlthunk_public uint32_t hlthunk_get_device_id_from_fd(int fd);

/* Writes the PCI address as a string (13 bytes with its NUL) into a buffer of len bytes. */
hlthunk_public int hlthunk_get_pci_bus_id_from_fd(int fd, char *pci_bus_id, int len);

/* Returns the node index N (/dev/accel/accelN) of the device at a PCI address. */
hlthunk_public int hlthunk_get_device_index_from_pci_bus_id(const char *busid);

/* Gaudi3 release: returns the node index of the device with this module number. */
hlthunk_public int hlthunk_get_device_index_from_module_id(uint32_t module_id);

/* Returns the version of this library as a string, which the caller frees with hlthunk_free(). */
hlthunk_public char *hlthunk_get_version(void);

/* Allocates zeroed memory, which the caller frees with hlthunk_free(). */
hlthunk_public void *hlthunk_malloc(size_t size);

/* Frees memory returned by hlthunk_malloc() or hlthunk_get_version(). NULL is allowed. */
hlthunk_public void hlthunk_free(void *pt);

/* ----------------------------------------------------------------------------------------
 * Device information. These functions also accept the control node.
 * ---------------------------------------------------------------------------------------- */

/*
 * The result of hlthunk_get_hw_ip_info(). Masks have one bit per engine. Addresses are the start of
 * the memory available to programs; sizes are in bytes. The header of 2023 reserves the fields that
 * are marked g3.
 */
struct hlthunk_hw_ip_info {
	uint64_t sram_base_address;
	uint64_t dram_base_address;
	uint64_t dram_size;
	uint32_t sram_size;
	uint32_t num_of_events;  /* length of the event arrays */
	uint32_t device_id;  /* PCI device id */
	uint32_t cpld_version;
	uint32_t psoc_pci_pll_nr;  /* the PCI PLL, for profilers */
	uint32_t psoc_pci_pll_nf;
	uint32_t psoc_pci_pll_od;
	uint32_t psoc_pci_pll_div_factor;
	uint16_t tpc_enabled_mask;  /* Goya and Gaudi; newer: _ext */
	uint8_t dram_enabled;
	uint8_t cpucp_version[HL_INFO_VERSION_MAX_LEN];
	uint32_t module_id;  /* OCP module number */
	uint8_t card_name[HL_INFO_CARD_NAME_MAX_LEN];
	uint32_t decoder_enabled_mask;
	uint8_t mme_master_slave_mode;  /* Gaudi2 and newer */
	uint64_t tpc_enabled_mask_ext;
	uint64_t dram_page_size;
	uint16_t first_available_interrupt_id;  /* for hlthunk_wait_for_interrupt() */
	uint32_t edma_enabled_mask;
	uint16_t server_type;  /* enum hl_server_type */
	uint64_t pdma_user_owned_ch_mask;  /* g3: DMA channels of programs */
	uint16_t number_of_user_interrupts;
	uint64_t device_mem_alloc_default_page_size;  /* used for page size 0 */
	uint64_t nic_ports_mask;  /* g3 */
	uint8_t interposer_version;  /* g3 */
	uint8_t substrate_version;  /* g3 */
	uint64_t nic_ports_external_mask;  /* g3: ports with a network device */
	uint32_t mme_enabled_mask;  /* g3 */
	uint8_t odp_supported;  /* g3: on-demand paging */
	uint8_t security_enabled;
	uint8_t revision_id;  /* PCI revision */
	uint16_t tpc_interrupt_id;
	uint64_t engine_core_interrupt_reg_addr;
	uint32_t rotator_enabled_mask;
	uint32_t sched_arc_enabled_mask;  /* g3 */
	uint64_t reserved_dram_size;  /* used by driver and firmware */
};

/* Reports the device's properties. */
hlthunk_public int hlthunk_get_hw_ip_info(int fd, struct hlthunk_hw_ip_info *hw_ip);

/* Device memory in bytes: free, and allocated by this context. */
struct hlthunk_dram_usage_info {
	uint64_t dram_free_mem;
	uint64_t ctx_dram_mem;
};
hlthunk_public int hlthunk_get_dram_usage(int fd, struct hlthunk_dram_usage_info *dram_usage);

/*
 * Returns enum hl_device_status, or a negative errno value. The header of 2023 declares that enum
 * as the result.
 */
hlthunk_public int hlthunk_get_device_status_info(int fd);

#define HLTHUNK_BUSY_ENGINES_MASK_SIZE 4

/*
 * Busy engines: bit n is the engine with id n in the chip's enum of engine ids.
 */
struct hlthunk_engines_idle_info {
	uint32_t is_idle;
	uint32_t pad;
	uint64_t mask[HLTHUNK_BUSY_ENGINES_MASK_SIZE];
};

/* Returns true if all engines are idle; false if one is busy, and on failure. */
hlthunk_public bool hlthunk_is_device_idle(int fd);

/* Reports which engines are busy. */
hlthunk_public int hlthunk_get_busy_engines_mask(int fd, struct hlthunk_engines_idle_info *info);

/* Writes the state of all engines as text into a buffer. Stores the number of bytes written. */
hlthunk_public int hlthunk_get_engine_status(
	int fd, char *status_buf, uint32_t status_buf_size, int *actual_size);

/* Frequencies of the outputs of a PLL in MHz. */
struct hlthunk_pll_frequency_info {
	uint16_t output[HL_PLL_NUM_OUTPUTS];
};

/* Reports the frequencies of a PLL. index is a value of the chip's enum of PLLs. */
hlthunk_public int hlthunk_get_pll_frequency(
	int fd, uint32_t index, struct hlthunk_pll_frequency_info *frequency);

/* Reports the current and the maximum clock rate in MHz. */
hlthunk_public int hlthunk_get_clk_rate(int fd, uint32_t *cur_clk_mhz, uint32_t *max_clk_mhz);

/* Reports the utilization over the last period_ms milliseconds (100 to 1000) in percent. */
hlthunk_public int hlthunk_get_device_utilization(int fd, uint32_t period_ms, uint32_t *rate);

/*
 * Reports how often each hardware event has occurred since the last reset or, if aggregate is true,
 * since the driver was loaded. hw_events_arr_size is in bytes.
 */
hlthunk_public int hlthunk_get_hw_events_arr(
	int fd, bool aggregate, uint32_t hw_events_arr_size, uint32_t *hw_events_arr);

/* Number of resets since the driver was loaded. */
struct hlthunk_reset_count_info {
	uint32_t hard_reset_count;
	uint32_t soft_reset_count;
};
hlthunk_public int hlthunk_get_reset_count_info(int fd, struct hlthunk_reset_count_info *info);

/*
 * Device time and host time, read together. Host time is CLOCK_MONOTONIC_RAW in nanoseconds. The
 * struct of 2023 lacks tsc_time: hlthunk_get_time_sync_info() never writes it, because a program
 * built for 2023 has no space for it.
 */
struct hlthunk_time_sync_info {
	uint64_t device_time;
	uint64_t host_time;
	uint64_t tsc_time;  /* g3: hlthunk_get_time_sync_per_die_info() only */
};
hlthunk_public int hlthunk_get_time_sync_info(int fd, struct hlthunk_time_sync_info *info);

/* Gaudi3 release: the clocks of one die. */
hlthunk_public int hlthunk_get_time_sync_per_die_info(
	int fd, uint32_t die_index, struct hlthunk_time_sync_info *info);

/* The first sync object, monitor and completion queue that programs can use. */
struct hlthunk_sync_manager_info {
	uint32_t first_available_sync_object;
	uint32_t first_available_monitor;
	uint32_t first_available_cq;
	uint32_t reserved;
};

/* Reports the resources of a dcore's sync manager. */
hlthunk_public int hlthunk_get_sync_manager_info(
	int fd, int dcore_id, struct hlthunk_sync_manager_info *info);

/* Reports the page sizes of device memory: bit n is a page size of 2^n bytes. */
hlthunk_public int hlthunk_get_dev_memalloc_page_orders(int fd, uint64_t *page_order_bitmask);

/* Reports the number of dropped submissions, by reason. */
hlthunk_public int hlthunk_get_cs_counters_info(int fd, struct hl_info_cs_counters *info);

/* PCIe throughput in KB/s, and the number of replays. */
struct hlthunk_pci_counters_info {
	uint64_t rx_throughput;
	uint64_t tx_throughput;
	uint32_t replay_cnt;
};
hlthunk_public int hlthunk_get_pci_counters_info(int fd, struct hlthunk_pci_counters_info *info);

/* Bits of clk_throttle_reason_bitmask. */
#define HLTHUNK_CLK_THROTTLE_POWER (1 << HL_CLK_THROTTLE_TYPE_POWER)
#define HLTHUNK_CLK_THROTTLE_THERMAL (1 << HL_CLK_THROTTLE_TYPE_THERMAL)

/* Current throttling reasons; for each reason the start and duration of the last throttling. */
struct hlthunk_clk_throttle_info {
	uint32_t clk_throttle_reason_bitmask;
	uint64_t clk_throttle_start_timestamp_us[HL_CLK_THROTTLE_TYPE_MAX];
	uint64_t clk_throttle_duration_ns[HL_CLK_THROTTLE_TYPE_MAX];
};
hlthunk_public int hlthunk_get_clk_throttle_info(int fd, struct hlthunk_clk_throttle_info *info);

/* Energy in millijoules since the device was powered on. */
struct hlthunk_energy_info {
	uint64_t total_energy_consumption;
};
hlthunk_public int hlthunk_get_total_energy_consumption_info(
	int fd, struct hlthunk_energy_info *info);

/* Power in milliwatts. */
struct hlthunk_power_info {
	uint64_t power;
};
hlthunk_public int hlthunk_get_power_info(int fd, struct hlthunk_power_info *info);

/* Number of opens of the compute node, duration of the last open, and current use. */
struct hlthunk_open_stats_info {
	uint64_t open_counter;
	uint64_t last_open_period_ms;
	uint8_t is_compute_ctx_active;
	uint8_t compute_ctx_in_release;
};
hlthunk_public int hlthunk_get_open_stats(int fd, struct hlthunk_open_stats_info *open_stats);

/*
 * The results of several functions. valid is 1 if the status was read; power is read only if the
 * device is operational.
 */
struct hlthunk_hw_asic_status {
	struct hlthunk_clk_throttle_info throttle;
	struct hlthunk_open_stats_info open_stats;
	struct hlthunk_power_info power;
	enum hl_device_status status;
	uint64_t timestamp_sec;
	uint8_t valid;
};
hlthunk_public int hlthunk_get_hw_asic_status(
	int fd, struct hlthunk_hw_asic_status *hw_asic_status);

#define DRAM_ROW_REPLACE_MAX 32

/* Why a row of device memory was replaced. */
enum hlthunk_dram_row_replace_cause {
	HLTHUNK_ROW_REPLACE_CAUSE_DOUBLE_ECC_ERR = 0,
	HLTHUNK_ROW_REPLACE_CAUSE_MULTI_SINGLE_ECC_ERR = 1
};

/* A replaced row. */
struct hlthunk_dram_row_info {
	uint8_t dram_idx;
	uint8_t pc;  /* pseudo channel */
	uint8_t sid;
	uint8_t bank_idx;
	uint16_t row_addr;
	uint8_t replaced_row_cause;  /* enum hlthunk_dram_row_replace_cause */
	uint8_t pad;
};

/* Replaced rows. */
struct hlthunk_dram_replaced_rows_info {
	uint16_t num_replaced_rows;
	uint8_t pad[6];
	struct hlthunk_dram_row_info replaced_rows[DRAM_ROW_REPLACE_MAX];
};
hlthunk_public int hlthunk_get_dram_replaced_rows_info(
	int fd, struct hlthunk_dram_replaced_rows_info *info);

/* Reports the number of rows pending replacement. */
hlthunk_public int hlthunk_get_dram_pending_rows_info(int fd, uint32_t *out);

/* A boot attestation: its parts, and the valid length of each part in bytes. */
struct hlthunk_sec_attest_info {
	uint32_t nonce;
	uint16_t pcr_quote_len;
	uint16_t pub_data_len;
	uint16_t certificate_len;
	uint8_t pcr_num_reg;
	uint8_t pcr_reg_len;
	uint8_t quote_sig_len;
	uint8_t pcr_data[SEC_PCR_DATA_BUF_SZ];
	uint8_t pcr_quote[SEC_PCR_QUOTE_BUF_SZ];
	uint8_t quote_sig[SEC_SIGNATURE_BUF_SZ];
	uint8_t public_data[SEC_PUB_DATA_BUF_SZ];
	uint8_t certificate[SEC_CERTIFICATE_BUF_SZ];
};

/* Requests a boot attestation with this nonce from the firmware. */
hlthunk_public int hlthunk_get_sec_attest_info(
	int fd, uint32_t nonce, struct hlthunk_sec_attest_info *info);

/* Gaudi3 release: signed information about the device. */
struct hlthunk_dev_info_signed {
	uint32_t nonce;
	uint16_t pub_data_len;
	uint16_t certificate_len;
	uint8_t info_sig_len;
	uint8_t public_data[SEC_PUB_DATA_BUF_SZ];
	uint8_t certificate[SEC_CERTIFICATE_BUF_SZ];
	uint8_t info_sig[SEC_SIGNATURE_BUF_SZ];
	uint16_t dev_info_len;
	uint8_t dev_info[SEC_DEV_INFO_BUF_SZ];
};
hlthunk_public int hlthunk_get_dev_info_signed(
	int fd, uint32_t nonce, struct hlthunk_dev_info_signed *info);

/* Gaudi3 release: an Ethernet address. */
struct hlthunk_mac_addr {
	uint8_t addr[ETH_ALEN];
};

/* Gaudi3 release: MAC addresses of the ports; mask has a bit for each valid one. */
struct hlthunk_mac_addr_info {
	struct hlthunk_mac_addr array[HL_INFO_MAC_ADDR_MAX_NUM];
	uint64_t mask[2];
};
hlthunk_public int hlthunk_get_mac_addr_info(int fd, struct hlthunk_mac_addr_info *info);

/* Gaudi3 release: the port of the link. */
struct hlthunk_get_habana_link_state_in {
	uint32_t port;
	uint32_t pad;
};

/* Gaudi3 release: 1 if the link is up. */
struct hlthunk_get_habana_link_state_out {
	uint8_t up;
	uint8_t pad[7];
};
hlthunk_public int hlthunk_get_habana_link_state(
	int fd, struct hlthunk_get_habana_link_state_in *in,
	struct hlthunk_get_habana_link_state_out *out);

/* Gaudi3 release: the port of the link. */
struct hlthunk_get_habana_link_stat_in {
	uint32_t port;
};

/* Gaudi3 release: buffers for the names and values of a link's counters. */
struct hlthunk_get_habana_link_stat_out {
	uint8_t *str_buf;
	uint64_t *val_buf;
	uint32_t num_of_stat;
};
hlthunk_public int hlthunk_get_habana_link_statistics(
	int fd, struct hlthunk_get_habana_link_stat_in *in,
	struct hlthunk_get_habana_link_stat_out *out);

/* Sends a request to the firmware. buff contains the request and receives the answer. */
hlthunk_public int hlthunk_fw_send_generic_request(
	int fd, void *buff, uint32_t buff_size, uint32_t sub_opcode);

/* Issues the INFO ioctl with the caller's argument struct. */
hlthunk_public int hlthunk_get_info(int fd, struct hl_info_args *info);

/* ----------------------------------------------------------------------------------------
 * Memory
 * ---------------------------------------------------------------------------------------- */

/*
 * Allocates device memory. size is in bytes and is rounded up to whole pages; page_size 0 selects
 * the device's default; contiguous requests contiguous physical memory. Returns a handle for
 * hlthunk_device_memory_map() and hlthunk_device_memory_free().
 */
hlthunk_public uint64_t hlthunk_device_memory_alloc(
	int fd, uint64_t size, uint64_t page_size, bool contiguous, bool shared);

/* Frees device memory that is not mapped. */
hlthunk_public int hlthunk_device_memory_free(int fd, uint64_t handle);

/* Maps device memory and returns its device address. With hint_addr 0 the driver chooses it. */
hlthunk_public uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint_addr);

/* Pins host memory and maps it on the device. Returns its device address. */
hlthunk_public uint64_t hlthunk_host_memory_map(
	int fd, void *host_virt_addr, uint64_t hint_addr, uint64_t host_size);

/* As hlthunk_host_memory_map() with flags: HL_MEM_FORCE_HINT, HL_MEM_PREFETCH. */
hlthunk_public uint64_t hlthunk_host_memory_map_flags(
	int fd, void *host_virt_addr, uint64_t hint_addr, uint64_t host_size, uint32_t flags);

/*
 * Unmaps device or host memory at an address that a map function returned. Fails with EINVAL while
 * a dma-buf of the memory is open.
 */
hlthunk_public int hlthunk_memory_unmap(int fd, uint64_t device_virt_addr);

/*
 * Exports device memory as a dma-buf, starting at addr. addr is an address that a map function
 * returned, or a physical address on Gaudi. flags are those of open(2). Returns the descriptor.
 */
hlthunk_public int hlthunk_device_memory_export_dmabuf_fd(
	int fd, uint64_t addr, uint64_t size, uint32_t flags);

/* As hlthunk_device_memory_export_dmabuf_fd(), starting at addr + offset. */
hlthunk_public int hlthunk_device_mapped_memory_export_dmabuf_fd(
	int fd, uint64_t addr, uint64_t size, uint64_t offset, uint32_t flags);

/* Returns the size of a register block, and a handle for mmap(2) on fd. */
hlthunk_public int hlthunk_get_hw_block(
	int fd, uint64_t block_address, uint32_t *block_size, uint64_t *handle);

/*
 * Allocates a buffer of timestamps, 8 bytes each. The handle is for mmap(2) on fd and for
 * hlthunk_register_timestamp_interrupt(). Closing fd frees the buffer.
 */
hlthunk_public int hlthunk_allocate_timestamp_elements(
	int fd, uint32_t elements_num, uint64_t *handle);

/* Gaudi3 release: reads up to 16 KiB of device memory through the DEBUG ioctl. */
hlthunk_public int hlthunk_device_memory_read_block_experimental(
	int fd, uint32_t *buff, uint64_t block_address, uint32_t block_size, uint32_t flags);

/* ----------------------------------------------------------------------------------------
 * Command buffers
 * ---------------------------------------------------------------------------------------- */

/*
 * Allocates a command buffer of up to HL_MAX_CB_SIZE bytes in the kernel. The handle is for
 * submissions and for mmap(2) on fd.
 */
hlthunk_public int hlthunk_request_command_buffer(int fd, uint32_t cb_size, uint64_t *cb_handle);

/* As hlthunk_request_command_buffer(), and maps the buffer on the device. */
hlthunk_public int hlthunk_request_mapped_command_buffer(
	int fd, uint32_t cb_size, uint64_t *cb_handle);

/* Returns the device address of a mapped command buffer. */
hlthunk_public int hlthunk_get_mapped_cb_device_va_by_handle(
	int fd, uint64_t cb_handle, uint64_t *device_va);

/* Reports the number of submissions that use a command buffer. */
hlthunk_public int hlthunk_get_cb_usage_count(int fd, uint64_t cb_handle, uint32_t *usage_cnt);

/* Destroys a command buffer. Mappings of it stay valid until munmap(2). */
hlthunk_public int hlthunk_destroy_command_buffer(int fd, uint64_t cb_handle);

/* ----------------------------------------------------------------------------------------
 * Submissions
 * ---------------------------------------------------------------------------------------- */

/*
 * Jobs to submit: arrays of struct hl_cs_chunk for the restore phase (executed only if the context
 * has changed) and the execute phase. Flags are HL_CS_FLAGS_*.
 */
struct hlthunk_cs_in {
	void *chunks_restore;
	void *chunks_execute;
	uint32_t num_chunks_restore;
	uint32_t num_chunks_execute;
	uint32_t flags;
};

/* The sequence number of a submission, for the wait functions, and HL_CS_STATUS_*. */
struct hlthunk_cs_out {
	uint64_t seq;
	uint32_t status;
	uint16_t sob_count_before_submission;
};

/* Submits jobs. */
hlthunk_public int hlthunk_command_submission(
	int fd, struct hlthunk_cs_in *in, struct hlthunk_cs_out *out);

/* As above, with a timeout in seconds, after which the driver considers the jobs hung. */
hlthunk_public int hlthunk_command_submission_timeout(
	int fd, struct hlthunk_cs_in *in, struct hlthunk_cs_out *out, uint32_t timeout);

/*
 * Submits a further part of the staged submission `sequence`, or with
 * HL_CS_FLAGS_STAGED_SUBMISSION_FIRST its first part.
 */
hlthunk_public int hlthunk_staged_command_submission(
	int fd, uint64_t sequence, struct hlthunk_cs_in *in, struct hlthunk_cs_out *out);

/* As above, with a timeout in seconds. */
hlthunk_public int hlthunk_staged_command_submission_timeout(
	int fd, uint64_t sequence, struct hlthunk_cs_in *in, struct hlthunk_cs_out *out,
	uint32_t timeout);

/* Waits until the device's earlier writes to host memory are visible. */
hlthunk_public int hlthunk_cs_flush_pci_hbw_writes(int fd);

/* Halts or runs engine cores: HL_ENGINE_CORE_HALT, HL_ENGINE_CORE_RUN. */
hlthunk_public int hlthunk_engine_cores_set_mode(
	int fd, const uint32_t *core_ids, uint32_t num_cores, uint32_t mode);

/* Sends a command to engines. */
hlthunk_public int hlthunk_engines_command(
	int fd, const uint32_t *engine_ids, uint32_t num_engines, enum hl_engine_command command);

/* ----------------------------------------------------------------------------------------
 * Signals: submissions that signal or wait for a sync object of the driver
 * ---------------------------------------------------------------------------------------- */

/* The queue that signals. */
struct hlthunk_signal_in {
	void *chunks_restore;
	uint32_t num_chunks_restore;
	uint32_t queue_index;
	uint32_t flags;
};

/* The sequence number of the signal, and its sync object. */
struct hlthunk_signal_out {
	uint64_t seq;
	uint32_t status;
	uint32_t sob_base_addr_offset;
	uint16_t sob_count_before_submission;
};

/* Submits a signal. */
hlthunk_public int hlthunk_signal_submission(
	int fd, struct hlthunk_signal_in *in, struct hlthunk_signal_out *out);
hlthunk_public int hlthunk_signal_submission_timeout(
	int fd, struct hlthunk_signal_in *in, struct hlthunk_signal_out *out, uint32_t timeout);

/* The signal to wait for. */
struct hlthunk_wait_for_signal_data {
	union {
		uint64_t *signal_seq_arr;
		uint64_t encaps_signal_seq;
	};
	uint32_t signal_seq_nr;  /* 1 */
	uint32_t queue_index;
	uint32_t flags;  /* 0 */
	uint32_t collective_engine_id;  /* for a collective wait */
	uint32_t encaps_signal_offset;
};

/* hlthunk_wait_for_signal: address of an array of struct hlthunk_wait_for_signal_data. */
struct hlthunk_wait_in {
	void *chunks_restore;
	uint32_t num_chunks_restore;
	uint64_t *hlthunk_wait_for_signal;
	uint32_t num_wait_for_signal;  /* 1 */
	uint32_t flags;
};

/* The wait's sequence number; ULLONG_MAX if the signal had completed: nothing was submitted. */
struct hlthunk_wait_out {
	uint64_t seq;
	uint32_t status;
};

/* Submits a wait for a signal. */
hlthunk_public int hlthunk_wait_for_signal(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out);
hlthunk_public int hlthunk_wait_for_signal_timeout(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out, uint32_t timeout);

/* Submits a wait of several queues for a signal. */
hlthunk_public int hlthunk_wait_for_collective_signal(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out);
hlthunk_public int hlthunk_wait_for_collective_signal_timeout(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out, uint32_t timeout);

/* The queue, and the number of signals to reserve. */
struct hlthunk_sig_res_in {
	uint32_t queue_index;
	uint32_t count;
};

/* A reservation of signals. */
struct reserve_sig_handle {
	uint32_t id;
	uint32_t sob_base_addr_offset;
	uint32_t count;
};

/* A reservation and HL_CS_STATUS_*. */
struct hlthunk_sig_res_out {
	struct reserve_sig_handle handle;
	uint32_t status;
};

/* Reserves signals that the jobs of a staged submission trigger themselves. */
hlthunk_public int hlthunk_reserve_encaps_signals(
	int fd, struct hlthunk_sig_res_in *in, struct hlthunk_sig_res_out *out);

/* Cancels a reservation that no submission has used. */
hlthunk_public int hlthunk_unreserve_encaps_signals(
	int fd, struct reserve_sig_handle *handle, uint32_t *status);

/* Submits the part of a staged submission that triggers the signals of reservation handle_id. */
hlthunk_public int hlthunk_staged_command_submission_encaps_signals(
	int fd, uint64_t handle_id, struct hlthunk_cs_in *in, struct hlthunk_cs_out *out);

/* Submits a wait for reserved signals. */
hlthunk_public int hlthunk_wait_for_reserved_encaps_signals(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out);

/* As above, for several queues. */
hlthunk_public int hlthunk_wait_for_reserved_encaps_collective_signals(
	int fd, struct hlthunk_wait_in *in, struct hlthunk_wait_out *out);

/* ----------------------------------------------------------------------------------------
 * Waiting
 * ---------------------------------------------------------------------------------------- */

/*
 * Waits until a submission completes. status is HL_WAIT_CS_STATUS_*. A timeout of 0 polls. Fails
 * with ETIMEDOUT if the submission timed out, and with EIO if it was aborted.
 */
hlthunk_public int hlthunk_wait_for_cs(int fd, uint64_t seq, uint64_t timeout_us, uint32_t *status);

/*
 * As above, with the completion time (nanoseconds of CLOCK_MONOTONIC) of submissions with
 * HL_CS_FLAGS_TIMESTAMP.
 */
hlthunk_public int hlthunk_wait_for_cs_with_timestamp(
	int fd, uint64_t seq, uint64_t timeout_us, uint32_t *status, uint64_t *timestamp);

/* Up to HL_WAIT_MULTI_CS_LIST_MAX_LEN submissions to wait for. */
struct hlthunk_wait_multi_cs_in {
	uint64_t *seq;
	uint64_t timeout_us;
	uint32_t seq_len;
};

/* HL_WAIT_CS_STATUS_*, a bit for each completed submission, and the number of completed ones. */
struct hlthunk_wait_multi_cs_out {
	uint32_t status;
	uint32_t seq_set;
	uint8_t completed;
};

/* Waits until the first of several submissions completes. */
hlthunk_public int hlthunk_wait_for_multi_cs(
	int fd, struct hlthunk_wait_multi_cs_in *in, struct hlthunk_wait_multi_cs_out *out);
hlthunk_public int hlthunk_wait_for_multi_cs_with_timestamp(
	int fd, struct hlthunk_wait_multi_cs_in *in, struct hlthunk_wait_multi_cs_out *out,
	uint64_t *timestamp);

/* Waits until the 64-bit counter at addr reaches the target. Each interrupt rechecks it. */
hlthunk_public int hlthunk_wait_for_interrupt(
	int fd, void *addr, uint64_t target_value, uint32_t interrupt_id, uint64_t timeout_us,
	uint32_t *status);
hlthunk_public int hlthunk_wait_for_interrupt_with_timestamp(
	int fd, void *addr, uint64_t target_value, uint32_t interrupt_id, uint64_t timeout_us,
	uint32_t *status, uint64_t *timestamp);

/* As above, with a counter in a command buffer, given by handle and index. */
hlthunk_public int hlthunk_wait_for_interrupt_by_handle(
	int fd, uint64_t cq_counters_handle, uint64_t cq_counters_offset, uint64_t target_value,
	uint32_t interrupt_id, uint64_t timeout_us, uint32_t *status);
hlthunk_public int hlthunk_wait_for_interrupt_by_handle_with_timestamp(
	int fd, uint64_t cq_counters_handle, uint64_t cq_counters_offset, uint64_t target_value,
	uint32_t interrupt_id, uint64_t timeout_us, uint32_t *status, uint64_t *timestamp);

/*
 * Returns immediately. When the counter reaches the target, the driver writes the time to element
 * timestamps_offset of a timestamp buffer.
 */
hlthunk_public int hlthunk_register_timestamp_interrupt(
	int fd, uint32_t interrupt_id, uint64_t cq_counters_handle, uint64_t cq_counters_offset,
	uint64_t target_value, uint64_t timestamps_handle, uint64_t timestamps_offset);

/* ----------------------------------------------------------------------------------------
 * Events. These functions do not accept the control node.
 * ---------------------------------------------------------------------------------------- */

/* Registers for the device's events. Returns a descriptor for poll(2), the handle. */
hlthunk_public int hlthunk_notifier_create(int fd);

/* Deregisters, and closes the handle. */
hlthunk_public int hlthunk_notifier_release(int fd, int handle);

/*
 * Waits up to `timeout` milliseconds for events. Reports HL_NOTIFIER_EVENT_* and the number of
 * events since the last call (0 after a timeout).
 */
hlthunk_public int hlthunk_notifier_recv(
	int fd, int handle, uint64_t *notifier_events, uint64_t *notifier_cnt, uint32_t flags,
	uint32_t timeout);

/* Records that hlthunk_get_event_record() reads, and the struct that buf points to. */
enum hlthunk_event_record_id {
	HLTHUNK_OPEN_DEV = 0,         /* hlthunk_event_record_open_dev_time */
	HLTHUNK_CS_TIMEOUT = 1,       /* hlthunk_event_record_cs_timeout */
	HLTHUNK_RAZWI_EVENT = 2,      /* hlthunk_event_record_razwi_event */
	HLTHUNK_UNDEFINED_OPCODE = 3, /* hlthunk_event_record_undefined_opcode */
	HLTHUNK_HW_ERR_OPCODE = 4,    /* hlthunk_event_record_critical_hw_err */
	HLTHUNK_FW_ERR_OPCODE = 5,    /* hlthunk_event_record_critical_fw_err */
	HLTHUNK_ENGINE_EVENT = 6      /* hlthunk_event_record_engine_err, Gaudi3 release */
};

/* Timestamps of records are in nanoseconds; 0 if no such event was recorded. */

/* The time of the open of the compute node during which the other records were made. */
struct hlthunk_event_record_open_dev_time {
	int64_t timestamp;
};

/* The first submission that timed out. */
struct hlthunk_event_record_cs_timeout {
	int64_t timestamp;
	uint64_t seq;
};

/*
 * The first access to a forbidden address (RAZWI): HL_RAZWI_* flags, and the engines that may have
 * caused it.
 */
struct hlthunk_event_record_razwi_event {
	int64_t timestamp;
	uint64_t addr;
	uint16_t engine_id[HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR];
	uint16_t num_of_possible_engines;
	uint8_t flags;
};

/* The first packet with an opcode that the queue manager did not recognize. */
struct hlthunk_event_record_undefined_opcode {
	int64_t timestamp;
	uint64_t cb_addr_streams[MAX_QMAN_STREAMS_INFO][OPCODE_INFO_MAX_ADDR_SIZE];
	uint64_t cq_addr;
	uint32_t cq_size;
	uint32_t cb_addr_streams_len;
	uint32_t engine_id;
	uint32_t stream_id;
};

/* The first critical error of the hardware. */
struct hlthunk_event_record_critical_hw_err {
	int64_t timestamp;
	uint16_t event_id;
};

/* The first critical error of the firmware. */
struct hlthunk_event_record_critical_fw_err {
	int64_t timestamp;
	enum hl_info_fw_err_type err_type;
	uint16_t reported_err_id;
};

/* Gaudi3 release: the first error of an engine. */
struct hlthunk_event_record_engine_err {
	int64_t timestamp;
	uint16_t engine_id;
	uint16_t error_count;
};

/* Reads the record of an event. Opening the compute node clears the records. */
hlthunk_public int hlthunk_get_event_record(
	int fd, enum hlthunk_event_record_id event_id, void *buf);

/* A mapping at the time of a page fault. */
struct hlthunk_user_mapping {
	uint64_t dev_va;
	uint64_t size;
};

/* A page fault, and the caller's array for the mappings that existed at that time. */
struct hlthunk_page_fault_info {
	int64_t timestamp;
	uint64_t addr;
	uint16_t engine_id;
	uint32_t num_of_mappings;  /* mappings that existed */
	struct hlthunk_user_mapping *mappings_buf;
};

/* Reads the first page fault. mappings_buf has num_of_allocated_mappings elements. */
hlthunk_public int hlthunk_get_page_fault_info(
	int fd, struct hlthunk_page_fault_info *pf, uint32_t num_of_allocated_mappings);

/* ----------------------------------------------------------------------------------------
 * Debugging and profiling
 * ---------------------------------------------------------------------------------------- */

/* Issues the DEBUG ioctl with the caller's argument struct. */
hlthunk_public int hlthunk_debug(int fd, struct hl_debug_args *debug);

/* The profiler functions return -1 if no profiler library (libhl_shim.so) is loaded. */
hlthunk_public int hlthunk_profiler_start(int fd);
hlthunk_public int hlthunk_profiler_stop(int fd);
hlthunk_public int hlthunk_profiler_get_trace(
	int fd, void *buffer, uint64_t *size, uint64_t *num_entries);
hlthunk_public void hlthunk_profiler_destroy(void);

/* Open files in the driver's debugfs directory. */
struct hlthunk_debugfs {
	int addr_fd;
	int data_fd;
	int clk_gate_fd;
	char clk_gate_val[32];
};

/* Opens the files for the device of fd; needs root. */
hlthunk_public int hlthunk_debugfs_open(int fd, struct hlthunk_debugfs *debugfs);

/* Read and write a 32-bit word of the device's address space. */
hlthunk_public int hlthunk_debugfs_read(
	struct hlthunk_debugfs *debugfs, uint64_t full_address, uint32_t *val);
hlthunk_public int hlthunk_debugfs_write(
	struct hlthunk_debugfs *debugfs, uint64_t full_address, uint32_t val);
hlthunk_public int hlthunk_debugfs_close(struct hlthunk_debugfs *debugfs);

/* ----------------------------------------------------------------------------------------
 * Ports: Gaudi3 release, except where the driver of an older chip has the operation
 * ---------------------------------------------------------------------------------------- */

enum wq_types {
	WQ_WRITE = 1,
	WQ_RENDEZVOUS_READ = 2,
	WQ_RENDEZVOUS_WRITE = 3
};

/* Enabled ports, and ports with a network device. */
struct hlthunk_nic_get_ports_masks_out {
	uint64_t ports_mask;
	uint64_t ext_ports_mask;
};
hlthunk_public int hlthunk_nic_get_ports_masks(int fd, struct hlthunk_nic_get_ports_masks_out *out);

/* Allocates a connection of a port. */
hlthunk_public int hlthunk_alloc_conn(int fd, uint32_t port, uint32_t *conn_id);

/* Whether the collective connection leaves the server. */
struct hlthunk_nic_alloc_coll_conn_in {
	uint8_t is_scale_out;
};

/* Allocates a collective connection. */
hlthunk_public int hlthunk_alloc_coll_conn(
	int fd, struct hlthunk_nic_alloc_coll_conn_in *in, uint32_t *conn_id);

/* The sending side of a connection. Addresses are in host byte order. */
struct hlthunk_requester_conn_ctx {
	uint32_t deprecated;
	uint32_t dst_ip_addr;
	uint32_t dst_conn_id;
	uint32_t deprecated1;
	uint32_t last_index;
	uint8_t dst_mac_addr[ETH_ALEN];
	uint8_t deprecated2;
	uint8_t priority;
	uint8_t deprecated3;
	uint8_t timer_granularity;
	uint8_t swq_granularity;  /* 0: 32 bytes; 1: 64 */
	uint8_t wq_type;  /* enum wq_types */
	uint8_t deprecated4;
	uint8_t cq_number;
	uint8_t wq_remote_log_size;  /* power of two */
	uint32_t congestion_wnd;
	uint16_t mtu;
	uint8_t congestion_en;
	uint8_t encap_en;
	uint8_t encap_id;  /* valid with encap_en */
	uint8_t loopback;
	uint32_t wq_size;
	uint8_t coll_lag_idx;
	uint8_t coll_last_in_lag;
	uint8_t compression_en;
	uint32_t remote_key;
	uint8_t sack_en;  /* selective acknowledgement */
};

/* Handles of the work queues, for mmap(2). */
struct hlthunk_requester_conn_ctx_out {
	uint64_t swq_mem_handle;
	uint64_t rwq_mem_handle;
};
hlthunk_public int hlthunk_set_requester_conn_ctx(
	int fd, uint32_t port, uint32_t conn_id, const struct hlthunk_requester_conn_ctx *in,
	struct hlthunk_requester_conn_ctx_out *out);

/* The receiving side of a connection. */
struct hlthunk_responder_conn_ctx {
	uint32_t deprecated;
	uint32_t dst_ip_addr;
	uint32_t dst_conn_id;
	uint8_t dst_mac_addr[ETH_ALEN];
	uint8_t priority;
	uint8_t deprecated1;
	uint8_t deprecated2;
	uint8_t wq_peer_granularity;
	uint8_t cq_number;
	uint8_t deprecated3;
	uint32_t conn_peer;
	uint8_t rdv;  /* 1: rendezvous */
	uint8_t loopback;
	uint32_t wq_peer_size;
	uint8_t encap_en;
	uint8_t encap_id;
	uint32_t local_key;
	uint8_t sack_en;
};
hlthunk_public int hlthunk_set_responder_conn_ctx(
	int fd, uint32_t port, uint32_t conn_id, const struct hlthunk_responder_conn_ctx *ctx);
hlthunk_public int hlthunk_destroy_conn(int fd, uint32_t port, uint32_t conn_id);

/* An array of work queues; type is enum hl_nic_mem_type. */
struct hlthunk_nic_wq_arr_set_in {
	uint32_t port;
	uint64_t addr;
	uint32_t num_of_wqs;
	uint32_t num_of_wq_entries;
	uint32_t type;
	enum hl_nic_mem_id mem_id;
	uint8_t swq_granularity;
};

/* The handle of the array, for mmap(2). */
struct hlthunk_nic_wq_arr_set_out {
	uint64_t handle;
};
hlthunk_public int hlthunk_nic_wq_arr_set(
	int fd, struct hlthunk_nic_wq_arr_set_in *in, struct hlthunk_nic_wq_arr_set_out *out);
hlthunk_public int hlthunk_nic_wq_arr_unset(int fd, uint32_t port, uint32_t type);

/* Completion queues in the kernel: deprecated in the Gaudi3 release. */
hlthunk_public int hlthunk_nic_cq_create(int fd, uint32_t num_of_entries, uint64_t *handle);
hlthunk_public int hlthunk_nic_cq_destroy(int fd, uint64_t handle);
hlthunk_public int hlthunk_nic_cq_wait(
	int fd, uint64_t handle, uint32_t *status, uint32_t *pi, uint32_t *num_of_cqes,
	uint64_t timeout_us);
hlthunk_public int hlthunk_nic_cq_update_consumed_entries(
	int fd, uint64_t handle, uint32_t num_of_consumed_entries);

/* Completion queues in the program's memory: Gaudi. */
hlthunk_public int hlthunk_nic_user_cq_set(
	int fd, uint32_t port, uint64_t addr, uint32_t num_of_cqes);
hlthunk_public int hlthunk_nic_user_cq_unset(int fd, uint32_t port);
hlthunk_public int hlthunk_nic_user_cq_update_ci(int fd, uint32_t port, uint32_t ci);

/* The port. */
struct hlthunk_nic_user_cq_id_alloc_in {
	uint32_t port;
};

/* The id of a completion queue. */
struct hlthunk_nic_user_cq_id_alloc_out {
	uint32_t id;
};

/* Completion queues in the program's memory: Gaudi2 and newer. */
hlthunk_public int hlthunk_nic_user_cq_id_alloc(
	int fd, struct hlthunk_nic_user_cq_id_alloc_in *in,
	struct hlthunk_nic_user_cq_id_alloc_out *out);

/* A completion queue, and its number of entries. */
struct hlthunk_nic_user_cq_id_set_in {
	uint32_t port;
	uint32_t num_of_cqes;
	uint32_t id;
};

/* Handles for mmap(2): the queue, its producer index, and its registers. */
struct hlthunk_nic_user_cq_id_set_out {
	uint64_t mem_handle;
	uint64_t pi_handle;
	uint64_t regs_handle;
	uint32_t regs_offset;
};
hlthunk_public int hlthunk_nic_user_cq_id_set(
	int fd, struct hlthunk_nic_user_cq_id_set_in *in,
	struct hlthunk_nic_user_cq_id_set_out *out);

/* The completion queue to unset. */
struct hlthunk_nic_user_cq_id_unset_in {
	uint32_t port;
	uint64_t id;
};
hlthunk_public int hlthunk_nic_user_cq_id_unset(int fd, struct hlthunk_nic_user_cq_id_unset_in *in);

/* A completion queue for congestion events. */
struct hlthunk_nic_user_ccq_set_in {
	uint32_t port;
	uint32_t num_of_entries;
};

/* The queue's handles for mmap(2). */
struct hlthunk_nic_user_ccq_set_out {
	uint64_t ccq_handle;
	uint64_t ccq_pi_handle;
};
hlthunk_public int hlthunk_nic_user_ccq_set(
	int fd, struct hlthunk_nic_user_ccq_set_in *in, struct hlthunk_nic_user_ccq_set_out *out);
hlthunk_public int hlthunk_nic_user_ccq_unset(int fd, uint32_t port);

/* Doorbell fifos. */
hlthunk_public int hlthunk_nic_alloc_user_db_fifo(int fd, uint32_t port, uint32_t *id);

/* A doorbell fifo; mode is enum hl_nic_db_fifo_type. */
struct hlthunk_nic_user_db_fifo_set_in {
	uint32_t port;
	uint32_t id;
	uint32_t base_sob_addr;
	uint32_t num_sobs;
	uint8_t mode;
	uint8_t dir_dup_ports_mask;
};

/* The fifo's handles for mmap(2), and its size. */
struct hlthunk_nic_user_db_fifo_set_out {
	uint64_t ci_handle;
	uint64_t regs_handle;
	uint32_t fifo_size;
	uint32_t fifo_bp_thresh;
	uint32_t regs_offset;
};
hlthunk_public int hlthunk_nic_user_db_fifo_set(
	int fd, struct hlthunk_nic_user_db_fifo_set_in *in,
	struct hlthunk_nic_user_db_fifo_set_out *out);
hlthunk_public int hlthunk_nic_user_db_fifo_unset(int fd, uint32_t port, uint32_t id);

/*
 * A program's settings for a port: advanced operations, and addresses for back pressure and for
 * fence-and-acknowledge completions.
 */
struct hlthunk_nic_user_set_app_params_in {
	uint8_t advanced;
	uint32_t bp_offs[HL_NIC_USER_BP_OFFS_MAX];
	uint8_t deprecated;
	uint8_t fna_mask_size;
	uint32_t fna_fifo_offs[HL_NIC_FNA_CMPL_ADDR_NUM];
};
hlthunk_public int hlthunk_nic_user_set_app_params(
	int fd, uint32_t port, const struct hlthunk_nic_user_set_app_params_in *in);

/* Limits and current use of a port. */
struct hlthunk_nic_user_get_app_params_out {
	uint32_t max_num_of_qps;
	uint32_t num_allocated_qps;
	uint32_t max_allocated_qp_idx;
	uint32_t max_cq_size;
	uint8_t advanced;
	uint8_t max_num_of_cqs;
	uint8_t max_num_of_db_fifos;
	uint8_t max_num_of_encaps;
	uint32_t speed;  /* Gb/s */
	uint32_t max_num_of_coll_qps;
	uint32_t coll_qps_offset;
	uint32_t base_coll_qp_idx;
	uint32_t base_scale_out_coll_qp_idx;
	uint32_t max_num_of_scale_out_coll_qps;
};
hlthunk_public int hlthunk_nic_user_get_app_params(
	int fd, uint32_t port, struct hlthunk_nic_user_get_app_params_out *out);

/* An event of a port: HL_NIC_EQ_POLL_STATUS_*, HL_NIC_EQ_EVENT_TYPE_*. */
struct hlthunk_nic_eq_poll_out {
	uint32_t poll_status;
	uint32_t idx;
	uint32_t ev_data;
	uint8_t ev_type;
};
hlthunk_public int hlthunk_nic_eq_poll(int fd, uint32_t port, struct hlthunk_nic_eq_poll_out *out);

/* Encapsulation of a connection's packets. */
hlthunk_public int hlthunk_nic_user_encap_alloc(int fd, uint32_t port, uint32_t *encap_id);

/* The header that precedes each packet, and its address and length. */
struct hlthunk_encap_cfg {
	uintptr_t tnl_hdr_ptr;
	uint32_t tnl_hdr_size;
	uint32_t port;
	uint32_t id;
	uint32_t src_ipv4_addr;
	enum hl_nic_encap_type encap_type;
	union {
		uint16_t udp_dst_port;
		uint16_t ip_proto;
	};
};
hlthunk_public int hlthunk_nic_user_encap_set(int fd, const struct hlthunk_encap_cfg *encap_cfg);
hlthunk_public int hlthunk_nic_user_encap_unset(int fd, uint32_t port, uint32_t encap_id);

/* Writes the state of a queue pair as text. */
hlthunk_public int hlthunk_nic_dump_qp(
	int fd, uint32_t port, uint32_t qpn, uint32_t req, char *buf, uint32_t buf_size);

/* ----------------------------------------------------------------------------------------
 * Memory of an Xe device: Gaudi3 release
 * ---------------------------------------------------------------------------------------- */

hlthunk_public int hlthunk_nic_xe_vm_create(int fd, uint32_t *vm, int *vm_fd);
hlthunk_public int hlthunk_nic_xe_vm_destroy(int fd, uint32_t vm, int vm_fd);
hlthunk_public uint64_t hlthunk_nic_xe_device_memory_alloc(int fd, uint32_t vm, uint64_t size);
hlthunk_public int hlthunk_nic_xe_device_memory_free(int fd, uint64_t handle);
hlthunk_public int hlthunk_nic_xe_memory_map(
	int fd, uint32_t vm, uint64_t handle, void *hva, uint64_t dva, uint64_t size);
hlthunk_public int hlthunk_nic_xe_memory_unmap(int fd, uint32_t vm, uint64_t dva, uint64_t size);

/* ----------------------------------------------------------------------------------------
 * Deprecated functions; they return -EPERM
 * ---------------------------------------------------------------------------------------- */

hlthunk_public int hlthunk_deprecated_func1(
	int fd, uint64_t seq, uint64_t timeout_us, uint32_t *status, uint64_t *timestamp);
hlthunk_public int hlthunk_deprecated_func2(
	int fd, uint32_t interrupt_id, uint64_t cq_counters_handle, uint64_t cq_counters_offset,
	uint64_t target_value, uint64_t timestamp_handle, uint64_t timestamp_offset);
hlthunk_public int hlthunk_deprecated_func3(int fd, uint32_t num_elements, uint64_t *handle);

/* ----------------------------------------------------------------------------------------
 * Function table for a profiler
 * ---------------------------------------------------------------------------------------- */

/*
 * Functions that hlthunk_open() passes to ShimGetFunctions() of libhl_shim.so, which can replace
 * them. The table of 2023 ends before fp_hlthunk_get_time_sync_per_die_info. fp_get_dram_* and
 * fp_DEPRECATED1 are the vendor's names.
 */
struct hlthunk_functions_pointers {
	int (*fp_hlthunk_command_submission)(int, struct hlthunk_cs_in *, struct hlthunk_cs_out *);
	int (*fp_hlthunk_open)(enum hlthunk_device_name, const char *);
	int (*fp_hlthunk_close)(int);
	int (*fp_hlthunk_profiler_start)(int);
	int (*fp_hlthunk_profiler_stop)(int);
	int (*fp_hlthunk_profiler_get_trace)(int, void *, uint64_t *, uint64_t *);
	uint64_t (*fp_hlthunk_device_memory_alloc)(int, uint64_t, uint64_t, bool, bool);
	int (*fp_hlthunk_device_memory_free)(int, uint64_t);
	uint64_t (*fp_hlthunk_device_memory_map)(int, uint64_t, uint64_t);
	uint64_t (*fp_hlthunk_host_memory_map)(int, void *, uint64_t, uint64_t);
	int (*fp_hlthunk_memory_unmap)(int, uint64_t);
	int (*fp_hlthunk_debug)(int, struct hl_debug_args *);
	int (*fp_hlthunk_request_command_buffer)(int, uint32_t, uint64_t *);
	int (*fp_hlthunk_destroy_command_buffer)(int, uint64_t);
	int (*fp_hlthunk_wait_for_cs)(int, uint64_t, uint64_t, uint32_t *);
	enum hlthunk_device_name (*fp_hlthunk_get_device_name_from_fd)(int);
	int (*fp_hlthunk_get_pci_bus_id_from_fd)(int, char *, int);
	int (*fp_hlthunk_get_device_index_from_pci_bus_id)(const char *);
	void *(*fp_hlthunk_malloc)(size_t);
	void (*fp_hlthunk_free)(void *);
	int (*fp_hlthunk_signal_submission)(int, struct hlthunk_signal_in *,
		struct hlthunk_signal_out *);
	int (*fp_hlthunk_wait_for_signal)(int, struct hlthunk_wait_in *, struct hlthunk_wait_out *);
	int (*fp_hlthunk_get_time_sync_info)(int, struct hlthunk_time_sync_info *);
	int (*fp_hlthunk_get_cs_counters_info)(int, struct hl_info_cs_counters *);
	void (*fp_hlthunk_profiler_destroy)(void);
	int (*fp_hlthunk_request_mapped_command_buffer)(int, uint32_t, uint64_t *);
	int (*fp_hlthunk_wait_for_collective_sig)(int, struct hlthunk_wait_in *,
		struct hlthunk_wait_out *);
	int (*fp_hlthunk_deprecated_func1)(int, uint64_t, uint64_t, uint32_t *, uint64_t *);
	int (*fp_hlthunk_get_cb_usage_count)(int, uint64_t, uint32_t *);
	int (*fp_hlthunk_staged_command_submission)(int, uint64_t, struct hlthunk_cs_in *,
		struct hlthunk_cs_out *);
	int (*fp_hlthunk_get_hw_block)(int, uint64_t, uint32_t *, uint64_t *);
	int (*fp_hlthunk_wait_for_interrupt)(int, void *, uint64_t, uint32_t, uint64_t, uint32_t *);
	int (*fp_hlthunk_device_memory_export_dmabuf_fd)(int, uint64_t, uint64_t, uint32_t);
	int (*fp_hlthunk_command_submission_timeout)(int, struct hlthunk_cs_in *,
		struct hlthunk_cs_out *, uint32_t);
	int (*fp_hlthunk_signal_submission_timeout)(int, struct hlthunk_signal_in *,
		struct hlthunk_signal_out *, uint32_t);
	int (*fp_hlthunk_wait_for_signal_timeout)(int, struct hlthunk_wait_in *,
		struct hlthunk_wait_out *, uint32_t);
	int (*fp_hlthunk_wait_for_collective_sig_timeout)(int, struct hlthunk_wait_in *,
		struct hlthunk_wait_out *, uint32_t);
	int (*fp_hlthunk_staged_cs_timeout)(int, uint64_t, struct hlthunk_cs_in *,
		struct hlthunk_cs_out *, uint32_t);
	int (*fp_hlthunk_reserve_signals)(int, struct hlthunk_sig_res_in *,
		struct hlthunk_sig_res_out *);
	int (*fp_hlthunk_unreserve_signals)(int, struct reserve_sig_handle *, uint32_t *);
	int (*fp_hlthunk_staged_cs_encaps_signals)(int, uint64_t, struct hlthunk_cs_in *,
		struct hlthunk_cs_out *);
	int (*fp_hlthunk_wait_for_reserved_encaps_signals)(int, struct hlthunk_wait_in *,
		struct hlthunk_wait_out *);
	int (*fp_hlthunk_wait_for_collective_reserved_encap_sig)(int, struct hlthunk_wait_in *,
		struct hlthunk_wait_out *);
	uint64_t (*fp_hlthunk_host_memory_map_flags)(int, void *, uint64_t, uint64_t, uint32_t);
	int (*fp_get_dram_replaced_rows_info)(int, struct hlthunk_dram_replaced_rows_info *);
	int (*fp_get_dram_pending_rows_info)(int, uint32_t *);
	int (*fp_DEPRECATED1)(int, void *, uint64_t, uint32_t, uint64_t, uint32_t *, uint64_t *);
	int (*fp_hlthunk_wait_for_interrupt_by_handle)(int, uint64_t, uint64_t, uint64_t, uint32_t,
		uint64_t, uint32_t *);
	int (*fp_hlthunk_get_mapped_cb_device_va_by_handle)(int, uint64_t, uint64_t *);
	int (*fp_hlthunk_get_pll_frequency)(int, uint32_t, struct hlthunk_pll_frequency_info *);
	int (*fp_hlthunk_deprecated_func2)(int, uint32_t, uint64_t, uint64_t, uint64_t, uint64_t,
		uint64_t);
	int (*fp_hlthunk_deprecated_func3)(int, uint32_t, uint64_t *);
	int (*fp_hlthunk_device_mapped_memory_export_dmabuf_fd)(int, uint64_t, uint64_t, uint64_t,
		uint32_t);
	int (*fp_hlthunk_get_time_sync_per_die_info)(int, uint32_t,
		struct hlthunk_time_sync_info *);
	int (*fp_hlthunk_get_hw_ip_info)(int, struct hlthunk_hw_ip_info *);
};

#ifdef __cplusplus
}
#endif

#endif /* HLTHUNK_H */
