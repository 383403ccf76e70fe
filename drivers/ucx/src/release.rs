//! What differs between UCX's releases.
//!
//! The sizes and orders were compiled from the headers of each release's sources, without
//! statistics. UCX installs none of these headers and keeps none of these layouts stable.

use crate::abi::Internal;

/// How well a release is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// `cargo xtask test --step ucx` runs the release as Debian packages it.
    Run,
    /// The layouts were compiled and compared; nothing was run.
    Untested,
}

/// One release of UCX.
#[derive(Debug, PartialEq)]
pub(crate) struct Release {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) proof: Proof,
    /// `ucs_memory_type_t` of the memory, and its name.
    pub(crate) memory_type: u32,
    pub(crate) memory_type_name: &'static str,
    /// The functions of `uct_iface_internal_ops_t`, in order.
    pub(crate) internal: &'static [Internal],
    /// Whether `mem_alloc` takes a system device before the flags, `rkey_unpack` takes parameters,
    /// and `uct_allocated_memory_t` ends with a system device.
    pub(crate) has_system_device_arguments: bool,
    /// Whether allocation events and memory attributes have `mem_flags`.
    pub(crate) has_memory_flags: bool,
    /// Whether UCX loads plugins from the folders of `UCX_PLUGIN_PATH`.
    pub(crate) has_plugin_path: bool,
}

const ZE_DEVICE: (u32, &str) = (7, "ze-device");
const GAUDI: (u32, &str) = (9, "gaudi");

use Internal::{
    ConnectToEp, Connected, DeviceEp, EstimatePerf, GetSgl, Invalidate, MemElementPack, OutstandingPurge,
    PutSgl, Query, QueryV2, ReachableV2, VfsRefresh,
};

/// Every known release, oldest first.
pub(crate) const RELEASES: [Release; 6] = [
    Release {
        major: 1,
        minor: 18,
        proof: Proof::Run,
        memory_type: ZE_DEVICE.0,
        memory_type_name: ZE_DEVICE.1,
        internal: &[
            EstimatePerf,
            VfsRefresh,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
        ],
        has_system_device_arguments: false,
        has_memory_flags: false,
        has_plugin_path: false,
    },
    Release {
        major: 1,
        minor: 19,
        proof: Proof::Untested,
        memory_type: ZE_DEVICE.0,
        memory_type_name: ZE_DEVICE.1,
        internal: &[
            EstimatePerf,
            VfsRefresh,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
        ],
        has_system_device_arguments: true,
        has_memory_flags: false,
        has_plugin_path: false,
    },
    Release {
        major: 1,
        minor: 20,
        proof: Proof::Untested,
        memory_type: ZE_DEVICE.0,
        memory_type_name: ZE_DEVICE.1,
        internal: &[
            QueryV2,
            EstimatePerf,
            VfsRefresh,
            MemElementPack,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
            DeviceEp,
        ],
        has_system_device_arguments: true,
        has_memory_flags: false,
        has_plugin_path: false,
    },
    Release {
        major: 1,
        minor: 21,
        proof: Proof::Untested,
        memory_type: GAUDI.0,
        memory_type_name: GAUDI.1,
        internal: &[
            EstimatePerf,
            VfsRefresh,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
            DeviceEp,
        ],
        has_system_device_arguments: true,
        has_memory_flags: false,
        has_plugin_path: false,
    },
    Release {
        major: 1,
        minor: 22,
        proof: Proof::Untested,
        memory_type: GAUDI.0,
        memory_type_name: GAUDI.1,
        internal: &[
            QueryV2,
            EstimatePerf,
            VfsRefresh,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
            DeviceEp,
            PutSgl,
        ],
        has_system_device_arguments: true,
        has_memory_flags: true,
        has_plugin_path: true,
    },
    Release {
        major: 1,
        minor: 23,
        proof: Proof::Run,
        memory_type: GAUDI.0,
        memory_type_name: GAUDI.1,
        internal: &[
            QueryV2,
            EstimatePerf,
            VfsRefresh,
            Query,
            Invalidate,
            ConnectToEp,
            ReachableV2,
            Connected,
            DeviceEp,
            PutSgl,
            GetSgl,
            OutstandingPurge,
        ],
        has_system_device_arguments: true,
        has_memory_flags: true,
        has_plugin_path: true,
    },
];

/// Returns the table of a release; `None` if it has none.
pub(crate) fn find(major: u32, minor: u32) -> Option<&'static Release> {
    RELEASES
        .iter()
        .find(|release| (release.major, release.minor) == (major, minor))
}
