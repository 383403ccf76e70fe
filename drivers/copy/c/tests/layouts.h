/* Generated as gaudi_copy.h is: the library's sizes and offsets. */
#include <stddef.h>
#include "gaudi_copy.h"

#ifdef __cplusplus
#define CHECK static_assert
#else
#define CHECK _Static_assert
#endif

CHECK(sizeof(struct gaudi_copy_alloc_options) == 40, "gaudi_copy_alloc_options");
CHECK(offsetof(struct gaudi_copy_alloc_options, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_alloc_options, type) == 4, "type");
CHECK(offsetof(struct gaudi_copy_alloc_options, export_mode) == 8, "export_mode");
CHECK(offsetof(struct gaudi_copy_alloc_options, flags) == 12, "flags");
CHECK(offsetof(struct gaudi_copy_alloc_options, align) == 16, "align");
CHECK(offsetof(struct gaudi_copy_alloc_options, page_bytes) == 24, "page_bytes");
CHECK(offsetof(struct gaudi_copy_alloc_options, hint) == 32, "hint");
CHECK(sizeof(struct gaudi_copy_memory) == 48, "gaudi_copy_memory");
CHECK(offsetof(struct gaudi_copy_memory, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_memory, type) == 4, "type");
CHECK(offsetof(struct gaudi_copy_memory, base) == 8, "base");
CHECK(offsetof(struct gaudi_copy_memory, len) == 16, "len");
CHECK(offsetof(struct gaudi_copy_memory, device) == 24, "device");
CHECK(offsetof(struct gaudi_copy_memory, has_bus) == 28, "has_bus");
CHECK(offsetof(struct gaudi_copy_memory, bus_domain) == 32, "bus_domain");
CHECK(offsetof(struct gaudi_copy_memory, bus) == 36, "bus");
CHECK(offsetof(struct gaudi_copy_memory, bus_device) == 40, "bus_device");
CHECK(offsetof(struct gaudi_copy_memory, bus_function) == 44, "bus_function");
CHECK(sizeof(struct gaudi_copy_dmabuf) == 32, "gaudi_copy_dmabuf");
CHECK(offsetof(struct gaudi_copy_dmabuf, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_dmabuf, fd) == 4, "fd");
CHECK(offsetof(struct gaudi_copy_dmabuf, offset) == 8, "offset");
CHECK(offsetof(struct gaudi_copy_dmabuf, len) == 16, "len");
CHECK(offsetof(struct gaudi_copy_dmabuf, address) == 24, "address");
CHECK(sizeof(struct gaudi_copy_event) == 32, "gaudi_copy_event");
CHECK(offsetof(struct gaudi_copy_event, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_event, event) == 4, "event");
CHECK(offsetof(struct gaudi_copy_event, address) == 8, "address");
CHECK(offsetof(struct gaudi_copy_event, len) == 16, "len");
CHECK(offsetof(struct gaudi_copy_event, device) == 24, "device");
CHECK(offsetof(struct gaudi_copy_event, reserved) == 28, "reserved");
CHECK(sizeof(struct gaudi_copy_nic_region) == 64, "gaudi_copy_nic_region");
CHECK(offsetof(struct gaudi_copy_nic_region, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_nic_region, rkey) == 4, "rkey");
CHECK(offsetof(struct gaudi_copy_nic_region, address) == 8, "address");
CHECK(offsetof(struct gaudi_copy_nic_region, len) == 16, "len");
CHECK(offsetof(struct gaudi_copy_nic_region, iova) == 24, "iova");
CHECK(offsetof(struct gaudi_copy_nic_region, node) == 32, "node");
CHECK(offsetof(struct gaudi_copy_nic_region, gid) == 40, "gid");
CHECK(offsetof(struct gaudi_copy_nic_region, access) == 56, "access");
CHECK(offsetof(struct gaudi_copy_nic_region, reserved) == 60, "reserved");
CHECK(sizeof(struct gaudi_copy_key_info) == 32, "gaudi_copy_key_info");
CHECK(offsetof(struct gaudi_copy_key_info, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_key_info, scope) == 4, "scope");
CHECK(offsetof(struct gaudi_copy_key_info, type) == 8, "type");
CHECK(offsetof(struct gaudi_copy_key_info, reserved) == 12, "reserved");
CHECK(offsetof(struct gaudi_copy_key_info, address) == 16, "address");
CHECK(offsetof(struct gaudi_copy_key_info, len) == 24, "len");
CHECK(sizeof(struct gaudi_copy_counters) == 32, "gaudi_copy_counters");
CHECK(offsetof(struct gaudi_copy_counters, size) == 0, "size");
CHECK(offsetof(struct gaudi_copy_counters, reserved) == 4, "reserved");
CHECK(offsetof(struct gaudi_copy_counters, copies) == 8, "copies");
CHECK(offsetof(struct gaudi_copy_counters, copied_bytes) == 16, "copied_bytes");
CHECK(offsetof(struct gaudi_copy_counters, exports) == 24, "exports");
