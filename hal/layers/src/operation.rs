//! The operations of seam 1 by name: what a plan matches, what a trace calls a line.

use std::fmt;

use gaudi_uapi::errno::Call;

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:ident $kernel:literal $call:ident;)*) => {
        /// A method of [`KernelIo`](gaudi_seam::KernelIo).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[$doc])* $variant,)*
        }

        impl Operation {
            /// Every operation, in the seam's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The method's name: `mem_alloc`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                }
            }

            /// The name that the kernel's headers have for it, as errors carry it: `HL_MEM_OP_ALLOC`.
            pub const fn kernel_name(self) -> &'static str {
                match self {
                    $(Self::$variant => $kernel,)*
                }
            }

            /// The row of the errno table that it belongs to.
            pub const fn call(self) -> Call {
                match self {
                    $(Self::$variant => Call::$call,)*
                }
            }
        }
    };
}

operations! {
    /// `info`.
    Info info "HL_IOCTL_INFO" Info;
    /// `cb_create`.
    CbCreate cb_create "HL_CB_OP_CREATE" CbCreate;
    /// `cb_destroy`.
    CbDestroy cb_destroy "HL_CB_OP_DESTROY" CbHandle;
    /// `cb_info`.
    CbInfo cb_info "HL_CB_OP_INFO" CbHandle;
    /// `submit`.
    Submit submit "HL_IOCTL_CS" Cs;
    /// `wait_cs`.
    WaitCs wait_cs "HL_IOCTL_WAIT_CS" WaitCs;
    /// `wait_multi_cs`.
    WaitMultiCs wait_multi_cs "HL_WAIT_CS_FLAGS_MULTI_CS" WaitCs;
    /// `wait_interrupt`.
    WaitInterrupt wait_interrupt "HL_WAIT_CS_FLAGS_INTERRUPT" WaitInterrupt;
    /// `register_timestamp`.
    RegisterTimestamp register_timestamp "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" WaitInterrupt;
    /// `mem_alloc`.
    MemAlloc mem_alloc "HL_MEM_OP_ALLOC" MemAlloc;
    /// `mem_free`.
    MemFree mem_free "HL_MEM_OP_FREE" MemFree;
    /// `mem_map_device`.
    MemMapDevice mem_map_device "HL_MEM_OP_MAP" MemMapDevice;
    /// `mem_map_host`.
    MemMapHost mem_map_host "HL_MEM_OP_MAP (HL_MEM_USERPTR)" MemMapHost;
    /// `mem_unmap`.
    MemUnmap mem_unmap "HL_MEM_OP_UNMAP" MemUnmap;
    /// `ts_alloc`.
    TsAlloc ts_alloc "HL_MEM_OP_TS_ALLOC" MemTsAlloc;
    /// `map_block`.
    MapBlock map_block "HL_MEM_OP_MAP_BLOCK" MemMapBlock;
    /// `export_dmabuf`.
    ExportDmabuf export_dmabuf "HL_MEM_OP_EXPORT_DMABUF_FD" MemExport;
    /// `register_dmabuf`.
    RegisterDmabuf register_dmabuf "HL_MEM_OP_REG_DMABUF_FD" AnyIoctl;
    /// `debug`.
    Debug debug "HL_IOCTL_DEBUG" Debug;
    /// `nic`.
    Nic nic "HL_IOCTL_NIC" AnyIoctl;
    /// `mmap`.
    Mmap mmap "mmap" Mmap;
    /// `register_events`.
    RegisterEvents register_events "HL_INFO_REGISTER_EVENTFD" Info;
    /// `unregister_events`.
    UnregisterEvents unregister_events "HL_INFO_UNREGISTER_EVENTFD" Info;
}

impl Operation {
    /// The operation of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|operation| operation.name() == name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
