//! Addresses, each with its space in its type.
//!
//! There is no arithmetic between two addresses and none that can wrap: an address plus a length is
//! asked for with [`checked_add`](DeviceVa::checked_add), a distance with
//! [`offset_from`](DeviceVa::offset_from).
//!
//! ```compile_fail
//! use gaudi_spec::DeviceVa;
//! let sum = DeviceVa(1) + DeviceVa(2);
//! ```
//! ```compile_fail
//! use gaudi_spec::{DeviceVa, HostVa};
//! let same = DeviceVa(1) == HostVa(1);
//! ```

use core::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number, for a register or a kernel structure.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The address `bytes` further on; `None` where that leaves the 64-bit space.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Bytes from `origin` up to this address; `None` where it lies before `origin`.
            pub const fn offset_from(self, origin: Self) -> Option<u64> {
                self.0.checked_sub(origin.0)
            }

            /// Whether the address is a multiple of `align` bytes. Nothing is a multiple of zero.
            pub const fn is_aligned(self, align: u64) -> bool {
                align != 0 && self.0 % align == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// An address as the chip's engines put it on their bus for a user context: device memory and
    /// host memory through the MMU; SRAM and registers lie in the same space without translation.
    DeviceVa
}
address! {
    /// An address in the chip's own physical space: HBM, SRAM, configuration registers.
    DevicePa
}
address! {
    /// An address in the calling process.
    HostVa
}
address! {
    /// An address on the host side of the PCI bus, as an IOMMU maps it.
    Iova
}
address! {
    /// A distance from the start of a PCI BAR.
    BarOffset
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(DeviceVa(u64::MAX).checked_add(1), None, "past the end is None");
        assert_eq!(DeviceVa(8).checked_add(8), Some(DeviceVa(16)));
        assert_eq!(
            DeviceVa(4).offset_from(DeviceVa(5)),
            None,
            "a negative distance is None"
        );
        assert!(!Iova(0).is_aligned(0));
    }

    #[test]
    fn text_is_hexadecimal() {
        assert_eq!(format!("{}", HostVa(0x1000)), "0x1000");
        assert_eq!(format!("{:?}", BarOffset(16)), "BarOffset(0x10)");
        assert_eq!(format!("{:x}", DevicePa(255)), "ff");
    }
}
