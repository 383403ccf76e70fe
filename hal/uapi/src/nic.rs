//! `DRM_IOCTL_HL_NIC`: gaudi3 header only; named so that traces can say what a foreign client asked for.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct hl_nic_args`, gaudi3 header. No kernel package ships that header, so this layout rests on the
/// facts about the release and is not compiled against C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HlNicArgs {
    /// Address of the op's input struct.
    pub input_ptr: u64,
    /// Address of the op's output struct.
    pub output_ptr: u64,
    /// Bytes of the input struct.
    pub input_size: u32,
    /// Bytes of the output struct.
    pub output_size: u32,
    /// Not in use.
    pub ctx_id: u32,
    /// The operation, 0 to 29.
    pub op: u32,
}
