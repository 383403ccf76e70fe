//! What every packet has: a control word with barriers, and bytes.

/// A packet's struct, its control word and its two barriers.
macro_rules! packet {
    ($(#[$doc:meta])* $name:ident($ctl:ident, $len:literal) { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            ctl: $ctl,
            $($field: $kind,)*
        }

        impl $name {
            /// Bytes in the packet.
            pub const LEN: usize = $len;

            /// The control word.
            #[inline]
            pub const fn ctl(&self) -> $ctl {
                self.ctl
            }

            /// Waits until the engine has finished what came before (EB).
            #[must_use]
            #[inline]
            pub const fn with_engine_barrier(mut self, on: bool) -> Self {
                self.ctl = self.ctl.with_eb(on);
                self
            }

            /// Waits until messages that came before have arrived (MB).
            #[must_use]
            #[inline]
            pub const fn with_message_barrier(mut self, on: bool) -> Self {
                self.ctl = self.ctl.with_mb(on);
                self
            }
        }
    };
}

/// A packet of a word with fields and a control word: 8 bytes.
macro_rules! packet8 {
    ($(#[$doc:meta])* $name:ident($first:ident, $ctl:ident)) => {
        packet! {
            $(#[$doc])*
            $name($ctl, 8) {
                cfg: $first
            }
        }

        impl $name {
            #[inline]
            pub(super) const fn from_words(cfg: u32, ctl: u32) -> Self {
                Self {
                    ctl: $ctl::from_bits(ctl),
                    cfg: $first::from_bits(cfg),
                }
            }

            /// The first word.
            #[inline]
            pub const fn cfg(&self) -> $first {
                self.cfg
            }

            /// The packet's bytes.
            #[inline]
            pub const fn to_bytes(&self) -> [u8; Self::LEN] {
                join8(self.cfg.into_bits(), self.ctl.into_bits())
            }
        }
    };
}

/// The predicate of packets that have one.
macro_rules! predicated {
    ($($name:ident),*) => {
        $(impl $name {
            /// Is executed only where predicate `predicate` of the command processor holds; 0
            /// always does. `None` where `predicate` > 31.
            #[inline]
            pub const fn with_predicate(mut self, predicate: u8) -> Option<Self> {
                if predicate >= 32 {
                    return None;
                }
                self.ctl = self.ctl.with_predicate(predicate);
                Some(self)
            }
        })*
    };
}

/// Two words as the bytes of the chip.
#[inline]
pub(super) const fn join8(first: u32, second: u32) -> [u8; 8] {
    (first as u64 | (second as u64) << 32).to_le_bytes()
}

/// Two words and an address.
#[inline]
pub(super) const fn join16(first: u32, second: u32, address: u64) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = join8(first, second);
    let [i, j, k, l, m, n, o, p] = address.to_le_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// Two words and two addresses.
#[inline]
pub(super) const fn join24(first: u32, second: u32, one: u64, two: u64) -> [u8; 24] {
    // By name and not by index: the compiler then stores three words.
    let [a, b, c, d, e, f, g, h] = join8(first, second);
    let [i, j, k, l, m, n, o, p] = one.to_le_bytes();
    let [q, r, s, t, u, v, w, x] = two.to_le_bytes();
    [
        a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x,
    ]
}
