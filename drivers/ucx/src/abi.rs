//! The structures and numbers of UCX's C interface that a plugin fills in or reads.
//!
//! Offsets hold for every release of `release.rs`; a structure that grew is declared with the
//! fields that all releases share. Names are those of UCX's headers `uct/api/uct.h`,
//! `uct/api/v2/uct_v2.h`, `uct/base/uct_md.h`, `uct/base/uct_iface.h`, `ucm/api/ucm.h` and
//! `ucs/config/parser.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

/// A function pointer in a table of functions with different signatures.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Function(pub(crate) *const c_void);

/// `ucs_status_t`, one byte. Negative values are errors.
pub(crate) type UcsStatus = i8;

/// Bytes of a memory domain's name (`UCT_MD_NAME_MAX`), terminator included.
pub(crate) const MD_NAME: usize = 16;
/// Bytes of a device's name (`UCT_DEVICE_NAME_MAX`), terminator included.
pub(crate) const DEVICE_NAME: usize = 32;
/// `UCT_DEVICE_TYPE_ACC`.
pub(crate) const DEVICE_TYPE_ACC: c_uint = 2;
/// `UCS_SYS_DEVICE_ID_UNKNOWN`.
pub(crate) const SYSTEM_DEVICE_UNKNOWN: u8 = u8::MAX;
/// `UCS_MEMORY_TYPE_HOST`.
pub(crate) const MEMORY_TYPE_HOST: u32 = 0;
/// `UCS_MEM_FLAG_REGISTRABLE`.
pub(crate) const MEM_FLAG_REGISTRABLE: u8 = 1;

/// Bits of `uct_md_attr_v2_t::flags`.
pub(crate) mod md_flag {
    pub(crate) const ALLOC: u64 = 1 << 0;
    pub(crate) const REG: u64 = 1 << 1;
}

/// Bits of `uct_iface_attr_t::cap.flags`.
pub(crate) mod iface_flag {
    pub(crate) const PENDING: u64 = 1 << 3;
    pub(crate) const PUT_SHORT: u64 = 1 << 4;
    pub(crate) const PUT_ZCOPY: u64 = 1 << 6;
    pub(crate) const GET_SHORT: u64 = 1 << 8;
    pub(crate) const GET_ZCOPY: u64 = 1 << 10;
    pub(crate) const CONNECT_TO_IFACE: u64 = 1 << 40;
}

/// Bits of `uct_md_mem_attr_v2_t::field_mask`.
pub(crate) mod mem_attr_field {
    pub(crate) const MEM_TYPE: u64 = 1 << 0;
    pub(crate) const SYS_DEV: u64 = 1 << 1;
    pub(crate) const BASE_ADDRESS: u64 = 1 << 2;
    pub(crate) const ALLOC_LENGTH: u64 = 1 << 3;
    pub(crate) const DMABUF_FD: u64 = 1 << 4;
    pub(crate) const DMABUF_OFFSET: u64 = 1 << 5;
    pub(crate) const MEM_FLAGS: u64 = 1 << 6;
}

/// Bits of `ucm_event_type_t`.
pub(crate) mod event {
    pub(crate) const MEM_TYPE_ALLOC: i32 = 1 << 20;
    pub(crate) const MEM_TYPE_FREE: i32 = 1 << 21;
}

/// `ucs_list_link_t`: a link of a circular list.
#[repr(C)]
pub(crate) struct ListLink {
    pub(crate) prev: *mut ListLink,
    pub(crate) next: *mut ListLink,
}

impl ListLink {
    pub(crate) const UNLINKED: Self = Self {
        prev: std::ptr::null_mut(),
        next: std::ptr::null_mut(),
    };
}

/// `ucs_config_parser_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConfigParser {
    pub(crate) read: Function,
    pub(crate) write: Function,
    pub(crate) clone: Function,
    pub(crate) release: Function,
    pub(crate) help: Function,
    pub(crate) doc: Function,
    pub(crate) arg: *const c_void,
}

impl ConfigParser {
    pub(crate) const END: Self = Self {
        read: Function(null()),
        write: Function(null()),
        clone: Function(null()),
        release: Function(null()),
        help: Function(null()),
        doc: Function(null()),
        arg: null(),
    };
}

/// `ucs_config_field_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConfigField {
    pub(crate) name: *const c_char,
    pub(crate) default: *const c_char,
    pub(crate) doc: *const c_char,
    pub(crate) offset: usize,
    pub(crate) parser: ConfigParser,
}

/// `ucs_config_global_list_entry_t`: one section of `ucx_info -c`.
#[repr(C)]
pub(crate) struct ConfigEntry {
    pub(crate) name: *const c_char,
    pub(crate) prefix: *const c_char,
    pub(crate) table: *const ConfigField,
    pub(crate) size: usize,
    pub(crate) list: ListLink,
    pub(crate) flags: u8,
}

/// `uct_component_t`.
#[repr(C)]
pub(crate) struct Component {
    pub(crate) name: [u8; 16],
    pub(crate) query_md_resources: Function,
    pub(crate) md_open: Function,
    pub(crate) cm_open: Function,
    pub(crate) rkey_unpack: Function,
    pub(crate) rkey_ptr: Function,
    pub(crate) rkey_release: Function,
    pub(crate) rkey_compare: Function,
    pub(crate) md_config: ConfigEntry,
    pub(crate) cm_config: ConfigEntry,
    pub(crate) tl_list: ListLink,
    pub(crate) list: ListLink,
    pub(crate) flags: u64,
    pub(crate) md_vfs_init: Function,
}

/// `uct_tl_t`.
#[repr(C)]
pub(crate) struct Transport {
    pub(crate) name: [u8; 10],
    pub(crate) query_devices: Function,
    pub(crate) iface_open: Function,
    pub(crate) config: ConfigEntry,
    pub(crate) list: ListLink,
}

/// `uct_tl_device_resource_t`.
#[repr(C)]
pub(crate) struct DeviceResource {
    pub(crate) name: [u8; DEVICE_NAME],
    pub(crate) kind: c_uint,
    pub(crate) system_device: u8,
}

/// `uct_md_resource_desc_t`.
#[repr(C)]
pub(crate) struct MdResource {
    pub(crate) name: [u8; MD_NAME],
}

/// `uct_md_ops_t` of the newest release. An older release reads fewer functions of it.
#[repr(C)]
pub(crate) struct MdOps {
    pub(crate) close: Function,
    pub(crate) query: Function,
    pub(crate) mem_alloc: Function,
    pub(crate) mem_free: Function,
    pub(crate) mem_advise: Function,
    pub(crate) mem_reg: Function,
    pub(crate) mem_dereg: Function,
    pub(crate) mem_query: Function,
    pub(crate) mkey_pack: Function,
    pub(crate) mem_attach: Function,
    pub(crate) detect_memory_type: Function,
    pub(crate) mem_elem_pack: Function,
    pub(crate) mem_elem_release: Function,
}

/// `uct_md_t`.
#[repr(C)]
pub(crate) struct Md {
    pub(crate) ops: *const MdOps,
    pub(crate) component: *const Component,
}

/// The part of `uct_md_attr_v2_t` that all releases share and that is filled in here.
#[repr(C)]
pub(crate) struct MdAttr {
    pub(crate) field_mask: u64,
    pub(crate) max_alloc: u64,
    pub(crate) max_reg: usize,
    pub(crate) flags: u64,
    pub(crate) reg_mem_types: u64,
    pub(crate) reg_nonblock_mem_types: u64,
    pub(crate) cache_mem_types: u64,
    pub(crate) gva_mem_types: u64,
    pub(crate) detect_mem_types: u64,
    pub(crate) alloc_mem_types: u64,
    pub(crate) access_mem_types: u64,
    pub(crate) dmabuf_mem_types: u64,
    pub(crate) reg_cost: Linear,
    /// UCX fills it in.
    pub(crate) component_name: [u8; 16],
    pub(crate) rkey_packed_size: usize,
}

/// `ucs_linear_func_t`: `constant + slope * n`, in seconds.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Linear {
    pub(crate) constant: f64,
    pub(crate) slope: f64,
}

/// `uct_md_mem_attr_v2_t`. Releases without `mem_flags` never ask for it.
#[repr(C)]
pub(crate) struct MemAttr {
    pub(crate) field_mask: u64,
    pub(crate) mem_type: u32,
    pub(crate) sys_dev: u8,
    pub(crate) base_address: *mut c_void,
    pub(crate) alloc_length: usize,
    pub(crate) dmabuf_fd: c_int,
    pub(crate) dmabuf_offset: usize,
    pub(crate) mem_flags: u8,
}

/// `uct_md_mem_dereg_params_t`.
#[repr(C)]
pub(crate) struct DeregParams {
    pub(crate) field_mask: u64,
    pub(crate) flags: c_uint,
    pub(crate) memh: *mut c_void,
    pub(crate) comp: *mut Completion,
}

/// `UCT_MD_MEM_DEREG_FIELD_MEMH`.
pub(crate) const DEREG_FIELD_MEMH: u64 = 1 << 0;

/// `uct_completion_t`.
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) func: Option<unsafe extern "C" fn(*mut Completion)>,
    pub(crate) count: c_int,
    pub(crate) status: UcsStatus,
}

/// `uct_iov_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Iov {
    pub(crate) buffer: *mut c_void,
    pub(crate) length: usize,
    pub(crate) memh: *mut c_void,
    pub(crate) stride: usize,
    pub(crate) count: c_uint,
}

/// The part of `uct_ep_params_t` that is read here.
#[repr(C)]
pub(crate) struct EpParams {
    pub(crate) field_mask: u64,
    pub(crate) iface: *mut c_void,
}

/// `UCT_EP_PARAM_FIELD_IFACE`.
pub(crate) const EP_FIELD_IFACE: u64 = 1 << 0;

/// The part of `uct_iface_is_reachable_params_t` that is read here.
#[repr(C)]
pub(crate) struct ReachableParams {
    pub(crate) field_mask: u64,
    pub(crate) device_addr: *const c_void,
    pub(crate) iface_addr: *const c_void,
}

/// `UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR`.
pub(crate) const REACHABLE_FIELD_IFACE_ADDR: u64 = 1 << 1;

/// Sizes and limits of put or get in `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct RmaCap {
    pub(crate) max_short: usize,
    pub(crate) max_bcopy: usize,
    pub(crate) min_zcopy: usize,
    pub(crate) max_zcopy: usize,
    pub(crate) opt_zcopy_align: usize,
    pub(crate) align_mtu: usize,
    pub(crate) max_iov: usize,
}

/// Sizes and limits of active messages in `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct AmCap {
    pub(crate) max_short: usize,
    pub(crate) max_bcopy: usize,
    pub(crate) min_zcopy: usize,
    pub(crate) max_zcopy: usize,
    pub(crate) opt_zcopy_align: usize,
    pub(crate) align_mtu: usize,
    pub(crate) max_hdr: usize,
    pub(crate) max_iov: usize,
}

/// `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct IfaceAttr {
    pub(crate) put: RmaCap,
    pub(crate) get: RmaCap,
    pub(crate) am: AmCap,
    pub(crate) tag: [usize; 11],
    pub(crate) atomics: [u64; 4],
    pub(crate) flags: u64,
    pub(crate) event_flags: u64,
    pub(crate) device_addr_len: usize,
    pub(crate) iface_addr_len: usize,
    pub(crate) ep_addr_len: usize,
    pub(crate) max_conn_priv: usize,
    pub(crate) listen_sockaddr: [u64; 16],
    pub(crate) overhead: f64,
    pub(crate) bandwidth_dedicated: f64,
    pub(crate) bandwidth_shared: f64,
    pub(crate) latency: Linear,
    pub(crate) priority: u8,
    pub(crate) max_num_eps: usize,
    pub(crate) dev_num_paths: c_uint,
}

/// Bytes of `uct_base_iface_t`, which UCX's constructor fills in.
pub(crate) const BASE_IFACE: usize = 1280;
/// Bytes of `uct_base_ep_t`.
pub(crate) const BASE_EP: usize = 8;
/// Bytes of `uct_iface_config_t`.
pub(crate) const IFACE_CONFIG: usize = 32;

/// The functions of `uct_iface_ops_t`, by their index.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum IfaceOp {
    EpPutShort = 0,
    EpPutZcopy = 2,
    EpGetShort = 3,
    EpGetZcopy = 5,
    EpPendingAdd = 24,
    EpPendingPurge = 25,
    EpFlush = 26,
    EpFence = 27,
    EpCreate = 29,
    EpDestroy = 33,
    IfaceFlush = 38,
    IfaceFence = 39,
    IfaceProgressEnable = 40,
    IfaceProgressDisable = 41,
    IfaceProgress = 42,
    IfaceClose = 45,
    IfaceQuery = 46,
    IfaceGetDeviceAddress = 47,
    IfaceGetAddress = 48,
    IfaceIsReachable = 49,
}

/// `uct_iface_ops_t`.
#[repr(C)]
pub(crate) struct IfaceOps(pub(crate) [Function; 50]);

/// The functions of `uct_iface_internal_ops_t`. Their order differs between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Internal {
    EstimatePerf,
    VfsRefresh,
    Query,
    Invalidate,
    ConnectToEp,
    ReachableV2,
    Connected,
    QueryV2,
    MemElementPack,
    DeviceEp,
    PutSgl,
    GetSgl,
    OutstandingPurge,
}

/// `ucs_class_t`.
#[repr(C)]
pub(crate) struct Class {
    pub(crate) name: *const c_char,
    pub(crate) size: usize,
    pub(crate) superclass: *const Class,
    pub(crate) init: Function,
    pub(crate) cleanup: Function,
}

/// The event of device memory that was allocated or is about to be freed: `ucm_event_t::mem_type`.
///
/// Releases without the last two fields ignore them.
#[repr(C)]
pub(crate) struct MemTypeEvent {
    pub(crate) address: *mut c_void,
    pub(crate) size: usize,
    pub(crate) mem_type: u32,
    pub(crate) sys_dev: u8,
    pub(crate) mem_flags: u8,
    /// The rest of the union.
    pub(crate) rest: [u64; 3],
}

/// `ucm_event_handler_t`.
#[repr(C)]
pub(crate) struct EventHandler {
    pub(crate) list: ListLink,
    pub(crate) events: c_int,
    pub(crate) priority: c_int,
    pub(crate) cb: Option<unsafe extern "C" fn(c_int, *mut MemTypeEvent, *mut c_void)>,
    pub(crate) arg: *mut c_void,
}

/// `ucm_event_installer_t`.
#[repr(C)]
pub(crate) struct EventInstaller {
    pub(crate) install: Function,
    pub(crate) get_existing_alloc: Function,
    pub(crate) list: ListLink,
}

/// `ucs_log_component_config_t`.
#[repr(C)]
pub(crate) struct LogComponent {
    pub(crate) level: c_uint,
    pub(crate) name: [u8; 16],
    pub(crate) file_filter: *const c_char,
}

/// `ucx_perf_allocator_t`: how ucx_perftest's `-m` allocates a type of memory.
#[repr(C)]
pub(crate) struct PerfAllocator {
    pub(crate) mem_type: u32,
    pub(crate) init: Function,
    pub(crate) uct_alloc: Function,
    pub(crate) uct_free: Function,
    pub(crate) memcpy: Function,
    pub(crate) memset: Function,
}

/// `uct_allocated_memory_t`. Releases without system-device arguments end before `sys_dev`.
#[repr(C)]
pub(crate) struct AllocatedMemory {
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) method: c_uint,
    pub(crate) mem_type: u32,
    pub(crate) md: *mut Md,
    pub(crate) memh: *mut c_void,
    pub(crate) sys_dev: u8,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::release::{Proof, RELEASES, find};

    /// Sizes and offsets that were compiled from every release's headers and are the same in all.
    #[test]
    fn layouts_match_every_releases_headers() {
        let rows: [(&str, usize, usize); 27] = [
            ("uct_component_t", size_of::<Component>(), 232),
            ("uct_component_t.md_config", offset_of!(Component, md_config), 72),
            ("uct_component_t.list", offset_of!(Component, list), 200),
            (
                "uct_component_t.md_vfs_init",
                offset_of!(Component, md_vfs_init),
                224,
            ),
            ("uct_md_ops_t.mem_query", offset_of!(MdOps, mem_query), 56),
            (
                "uct_md_ops_t.detect_memory_type",
                offset_of!(MdOps, detect_memory_type),
                80,
            ),
            ("uct_md_ops_t of 1.23", size_of::<MdOps>(), 104),
            ("uct_md_t", size_of::<Md>(), 16),
            ("uct_md_attr_v2_t.flags", offset_of!(MdAttr, flags), 24),
            (
                "uct_md_attr_v2_t.dmabuf_mem_types",
                offset_of!(MdAttr, dmabuf_mem_types),
                88,
            ),
            ("uct_md_attr_v2_t.max_alloc", offset_of!(MdAttr, max_alloc), 8),
            ("uct_md_attr_v2_t.reg_cost", offset_of!(MdAttr, reg_cost), 96),
            (
                "uct_md_attr_v2_t.rkey_packed_size",
                offset_of!(MdAttr, rkey_packed_size),
                128,
            ),
            ("uct_md_mem_attr_t", offset_of!(MemAttr, mem_flags), 48),
            ("uct_md_mem_attr_v2_t", size_of::<MemAttr>(), 56),
            ("uct_tl_t", size_of::<Transport>(), 104),
            ("uct_tl_device_resource_t", size_of::<DeviceResource>(), 40),
            ("uct_iface_ops_t", size_of::<IfaceOps>(), 400),
            (
                "uct_iface_ops_t.iface_query",
                8 * IfaceOp::IfaceQuery as usize,
                368,
            ),
            ("uct_iface_attr_t", size_of::<IfaceAttr>(), 536),
            ("uct_iface_attr_t.latency", offset_of!(IfaceAttr, latency), 496),
            ("ucs_config_field_t", size_of::<ConfigField>(), 88),
            ("ucs_config_global_list_entry_t", size_of::<ConfigEntry>(), 56),
            ("ucs_class_t", size_of::<Class>(), 40),
            ("ucm_event_installer_t", size_of::<EventInstaller>(), 32),
            ("ucm_event_t", size_of::<MemTypeEvent>(), 48),
            (
                "uct_component_t.name",
                offset_of!(Component, query_md_resources),
                16,
            ),
        ];
        for (name, declared, compiled) in rows {
            assert_eq!(
                declared, compiled,
                "{name}: bytes declared here, bytes in UCX's headers"
            );
        }
    }

    /// (minor, bytes of uct_iface_internal_ops_t, offset of iface_estimate_perf, offset of
    /// iface_is_reachable_v2, number of memory types), compiled from each release's headers.
    const COMPILED: [(u32, usize, usize, usize, u32); 6] = [
        (18, 56, 0, 40, 9),
        (19, 56, 0, 40, 9),
        (20, 80, 8, 56, 9),
        (21, 64, 0, 40, 10),
        (22, 80, 8, 48, 10),
        (23, 96, 8, 48, 10),
    ];

    #[test]
    fn internal_functions_match_every_releases_headers() {
        assert_eq!(COMPILED.len(), RELEASES.len(), "a row for each release");
        for (minor, bytes, estimate, reachable, types) in COMPILED {
            let release = find(1, minor).expect("a known release");
            let offset = |wanted: Internal| {
                let at = release.internal.iter().position(|function| *function == wanted);
                8 * at.expect("every release has it")
            };
            assert_eq!(8 * release.internal.len(), bytes, "1.{minor}: bytes");
            assert_eq!(
                offset(Internal::EstimatePerf),
                estimate,
                "1.{minor}: iface_estimate_perf"
            );
            assert_eq!(
                offset(Internal::ReachableV2),
                reachable,
                "1.{minor}: iface_is_reachable_v2"
            );
            assert!(
                release.memory_type < types,
                "1.{minor}: the memory type is one of UCX's"
            );
        }
    }

    #[test]
    fn unknown_releases_have_no_table() {
        for (major, minor) in [(1, 17), (1, 24), (2, 18), (0, 0), (u32::MAX, u32::MAX)] {
            assert_eq!(find(major, minor), None, "{major}.{minor}");
        }
    }

    #[test]
    fn run_releases_are_those_of_debian() {
        let run: Vec<_> = RELEASES
            .iter()
            .filter(|release| release.proof == Proof::Run)
            .map(|release| (release.major, release.minor))
            .collect();
        assert_eq!(
            run,
            [(1, 18), (1, 23)],
            "the releases that the packages of the step `ucx` have"
        );
    }
}
