//! Waiting: `DRM_IOCTL_HL_WAIT_CS`, for submissions and for user interrupts.

use crate::words;
use crate::{Named, NumberBits, Since};

flags! {
    /// `hl_wait_cs_in.flags`, `HL_WAIT_CS_FLAGS_*`. The top twelve bits carry an interrupt id:
    /// [`Self::interrupt`].
    pub struct WaitCsFlags(u32), "HL_WAIT_CS_FLAGS_" {
        V6_1 INTERRUPT = 0x2,
        V6_1 MULTI_CS = 0x4,
        V6_1 INTERRUPT_KERNEL_CQ = 0x10,
        V6_1 REGISTER_INTERRUPT = 0x20,
    }
    number NumberBits {
        name: "interrupt",
        mask: WaitCsFlags::INTERRUPT_MASK as u64,
        names: WaitCsFlags::MASKS.split_at(1).1,
    }
}

impl WaitCsFlags {
    /// Where the interrupt id lies: `HL_WAIT_CS_FLAGS_INTERRUPT_MASK`.
    pub const INTERRUPT_MASK: u32 = 0xFFF0_0000;
    /// The id that means any completion queue: `HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT`.
    pub const ANY_CQ_INTERRUPT: u32 = 0xFFF0_0000;
    /// The id that means any decoder: `HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT`.
    pub const ANY_DEC_INTERRUPT: u32 = 0xFFE0_0000;

    /// The constants above, with their names in C.
    pub const MASKS: &'static [Named] = &[
        Named {
            c_name: "HL_WAIT_CS_FLAGS_INTERRUPT_MASK",
            value: Self::INTERRUPT_MASK as u64,
            since: Since::V6_1,
        },
        Named {
            c_name: "HL_WAIT_CS_FLAGS_ANY_CQ_INTERRUPT",
            value: Self::ANY_CQ_INTERRUPT as u64,
            since: Since::V6_1,
        },
        Named {
            c_name: "HL_WAIT_CS_FLAGS_ANY_DEC_INTERRUPT",
            value: Self::ANY_DEC_INTERRUPT as u64,
            since: Since::V6_1,
        },
    ];

    /// The flags of a wait for interrupt `id`; only its low twelve bits count.
    #[inline]
    pub const fn for_interrupt(id: u16) -> Self {
        Self(Self::INTERRUPT.0 | ((id as u32) << 20))
    }

    /// The interrupt id.
    pub const fn interrupt(self) -> u16 {
        (self.0 >> 20) as u16
    }
}

open_enum! {
    /// `hl_wait_cs_out.status`, `HL_WAIT_CS_STATUS_*`. TIMEDOUT and ABORTED come with ETIMEDOUT and
    /// EIO.
    pub struct WaitCsStatus(u32), "HL_WAIT_CS_STATUS_" {
        V6_1 COMPLETED = 0,
        V6_1 BUSY = 1,
        V6_1 TIMEDOUT = 2,
        V6_1 ABORTED = 3,
    }
}

flags! {
    /// `hl_wait_cs_out.flags`, `HL_WAIT_CS_STATUS_FLAG_*`. GONE: completed so long ago that its
    /// record is lost.
    pub struct WaitCsStatusFlags(u32), "HL_WAIT_CS_STATUS_FLAG_" {
        V6_1 GONE = 0x1,
        V6_1 TIMESTAMP_VLD = 0x2,
    }
}

c_structs! {
    pub struct HlWaitCsIn = "struct hl_wait_cs_in" {
        /// The first union: [`HlWaitCsInCs`] or [`HlWaitCsInInterrupt`].
        #[c()] pub arg: [u64; 2],
        /// Not in use.
        pub ctx_id: u32,
        /// Flags and interrupt id.
        pub flags: WaitCsFlags,
        /// The second union: [`HlWaitCsInMulti`], or `interrupt_timeout_us` (microseconds).
        #[c("interrupt_timeout_us")] pub arg2: [u64; 1],
        /// Index of the counter in the counters' buffer, with INTERRUPT_KERNEL_CQ.
        pub cq_counters_offset: u64,
        /// The timestamp buffer, with REGISTER_INTERRUPT.
        #[print(Hex)] pub timestamp_handle: u64,
        /// Index in the timestamp buffer, with REGISTER_INTERRUPT.
        pub timestamp_offset: u64,
    }

    /// The variant of [`HlWaitCsIn::arg`] for submissions: anonymous in `struct hl_wait_cs_in`.
    pub struct HlWaitCsInCs in HlWaitCsIn.arg {
        /// The sequence number; with MULTI_CS the address of an array of them.
        pub seq: u64,
        /// Microseconds to wait from now, although the header documents an absolute time; 0 polls.
        pub timeout_us: u64,
    }

    /// The variant of [`HlWaitCsIn::arg`] for interrupts: anonymous in `struct hl_wait_cs_in`.
    pub struct HlWaitCsInInterrupt in HlWaitCsIn.arg {
        /// User address to compare; all ones compares nothing. In C also `cq_counters_handle`.
        #[c("addr", "cq_counters_handle")] #[print(Hex)] pub addr: u64,
        /// The wait ends when the value is at or past this.
        pub target: u64,
    }

    /// The variant of [`HlWaitCsIn::arg2`] for MULTI_CS: anonymous in `struct hl_wait_cs_in`.
    pub struct HlWaitCsInMulti in HlWaitCsIn.arg2 {
        /// Sequence numbers in the array, at most [`crate::limits::HL_WAIT_MULTI_CS_LIST_MAX_LEN`].
        pub seq_arr_len: u8,
        /// Zero, or the driver answers EINVAL.
        pub pad: [u8; 7],
    }
}

impl HlWaitCsIn {
    /// Waits for one submission.
    #[inline]
    pub fn cs(seq: u64, timeout_us: u64) -> Self {
        Self {
            arg: words::from_view(&HlWaitCsInCs { seq, timeout_us }),
            ..Self::default()
        }
    }

    /// Waits for the first of `count` submissions whose numbers lie at `seqs`.
    #[inline]
    pub fn multi_cs(seqs: u64, count: u8, timeout_us: u64) -> Self {
        Self {
            arg: words::from_view(&HlWaitCsInCs {
                seq: seqs,
                timeout_us,
            }),
            arg2: words::from_view(&HlWaitCsInMulti {
                seq_arr_len: count,
                pad: [0; 7],
            }),
            flags: WaitCsFlags::MULTI_CS,
            ..Self::default()
        }
    }

    /// Waits for an interrupt after which the `u64` at user address `addr` is at or past `target`.
    #[inline]
    pub fn interrupt(id: u16, addr: u64, target: u64, timeout_us: u64) -> Self {
        Self {
            arg: words::from_view(&HlWaitCsInInterrupt { addr, target }),
            arg2: [timeout_us],
            flags: WaitCsFlags::for_interrupt(id),
            ..Self::default()
        }
    }

    /// The same wait on a counter in a buffer of the kernel: `handle`, and the counter's index.
    #[inline]
    pub fn interrupt_on_counter(id: u16, handle: u64, offset: u64, target: u64, timeout_us: u64) -> Self {
        let mut wait = Self::interrupt(id, handle, target, timeout_us);
        wait.flags |= WaitCsFlags::INTERRUPT_KERNEL_CQ;
        wait.cq_counters_offset = offset;
        wait
    }

    /// Asks for a timestamp in a buffer of the kernel when the counter gets to `target`; does not
    /// wait.
    #[inline]
    pub fn register_timestamp(id: u16, handle: u64, offset: u64, target: u64, slot: (u64, u64)) -> Self {
        let mut wait = Self::interrupt_on_counter(id, handle, offset, target, 0);
        wait.flags |= WaitCsFlags::REGISTER_INTERRUPT;
        (wait.timestamp_handle, wait.timestamp_offset) = slot;
        wait
    }
}

c_structs! {
    /// After an errno other than ETIMEDOUT and EIO it holds bytes of the request.
    pub struct HlWaitCsOut = "struct hl_wait_cs_out" {
        /// Where the submission stands.
        pub status: WaitCsStatus,
        /// What else is known.
        pub flags: WaitCsStatusFlags,
        /// Nanoseconds of the kernel's clock at completion, with TIMESTAMP_VLD.
        pub timestamp_nsec: i64,
        /// Bit n: number n of a multi-CS array has completed.
        #[print(Hex)] pub cs_completion_map: u32,
        /// Zero.
        pub pad: u32,
    }
}

args_union! {
    pub struct HlWaitCsArgs[7] = "union hl_wait_cs_args" { in: HlWaitCsIn, out: HlWaitCsOut }
}
