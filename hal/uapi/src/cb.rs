//! Command buffers of the kernel: `DRM_IOCTL_HL_CB`.

open_enum! {
    /// `hl_cb_in.op`, `HL_CB_OP_*`.
    pub struct CbOp(u32), "HL_CB_OP_" {
        V6_1 CREATE = 0,
        V6_1 DESTROY = 1,
        V6_1 INFO = 2,
    }
}

flags! {
    /// `hl_cb_in.flags`, `HL_CB_FLAGS_*`. MAP goes with CREATE, GET_DEVICE_VA with INFO.
    pub struct CbFlags(u32), "HL_CB_FLAGS_" {
        V6_1 MAP = 0x1,
        V6_1 GET_DEVICE_VA = 0x2,
    }
}

c_structs! {
    pub struct HlCbIn = "struct hl_cb_in" {
        /// Handle, or 0 to create.
        #[print(Hex)] pub cb_handle: u64,
        /// The operation.
        pub op: CbOp,
        /// Bytes wanted, at most [`crate::limits::HL_MAX_CB_SIZE`]; rounded up to the page.
        pub cb_size: u32,
        /// Not in use.
        pub ctx_id: u32,
        /// Flags.
        pub flags: CbFlags,
    }
}

impl HlCbIn {
    /// A request for a buffer of `size` bytes.
    #[inline]
    pub fn create(size: u32, flags: CbFlags) -> Self {
        Self {
            op: CbOp::CREATE,
            cb_size: size,
            flags,
            ..Self::default()
        }
    }

    /// Gives a buffer back. It lives on while submissions or mappings use it.
    #[inline]
    pub fn destroy(handle: u64) -> Self {
        Self {
            cb_handle: handle,
            op: CbOp::DESTROY,
            ..Self::default()
        }
    }

    /// Asks how many submissions use a buffer: [`HlCbOut::usage_cnt`].
    #[inline]
    pub fn usage(handle: u64) -> Self {
        Self {
            cb_handle: handle,
            op: CbOp::INFO,
            ..Self::default()
        }
    }

    /// Asks for the device address of a buffer made with [`CbFlags::MAP`]: [`HlCbOut::device_va`].
    #[inline]
    pub fn device_va(handle: u64) -> Self {
        Self {
            cb_handle: handle,
            op: CbOp::INFO,
            flags: CbFlags::GET_DEVICE_VA,
            ..Self::default()
        }
    }
}

c_structs! {
    /// One union, its meaning set by the request.
    pub struct HlCbOut = "struct hl_cb_out" {
        /// The union. In C: `cb_handle`, `device_va`, or `{usage_cnt, pad}`.
        #[c("cb_handle", "device_va")] #[print(Hex)] pub arg: [u64; 1],
    }

    /// The variant of [`HlCbOut`] that INFO fills: anonymous in `struct hl_cb_out`.
    pub struct HlCbOutUsage in HlCbOut.arg {
        /// Submissions that use the buffer.
        pub usage_cnt: u32,
        /// Zero.
        pub pad: u32,
    }
}

impl HlCbOut {
    /// After CREATE: the handle, which is also the mmap offset.
    #[inline]
    pub fn cb_handle(&self) -> u64 {
        self.arg[0]
    }

    /// After INFO with GET_DEVICE_VA: the device address.
    #[inline]
    pub fn device_va(&self) -> u64 {
        self.arg[0]
    }

    /// After INFO: how many submissions use the buffer.
    #[inline]
    pub fn usage_cnt(&self) -> u32 {
        crate::words::to_view::<1, HlCbOutUsage>(&self.arg).usage_cnt
    }
}

args_union! {
    pub struct HlCbArgs[3] = "union hl_cb_args" { in: HlCbIn, out: HlCbOut }
}
