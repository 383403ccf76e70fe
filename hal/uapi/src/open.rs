//! Open enums and flag sets: newtypes whose unknown values survive.

use core::fmt;

/// The oldest header that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Since {
    /// `misc/habanalabs.h` of Linux 6.1 (and `drm/habanalabs_accel.h` too).
    V6_1,
    /// `drm/habanalabs_accel.h` of Linux 6.12 and 7.3, which name the same things, but not the 6.1
    /// header.
    V7,
    /// Only the header of the Gaudi3 release. Mainline drivers answer EINVAL or ENOTTY.
    Gaudi3,
}

impl fmt::Display for Since {
    /// The header, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V6_1 => "misc/habanalabs.h of Linux 6.1",
            Self::V7 => "drm/habanalabs_accel.h of Linux 6.12",
            Self::Gaudi3 => "the Gaudi3 release's header",
        })
    }
}

/// One named value: a row of an open enum's table, of flags, or a plain constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name in C.
    pub c_name: &'static str,
    /// The value, widened.
    pub value: u64,
    /// The oldest header with this name.
    pub since: Since,
}

/// The names of an open enum's values, or of the flags in a set.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The front of each name in C, which texts leave out.
    pub prefix: &'static str,
    /// The names, in the header's order.
    pub rows: &'static [Named],
    /// Whether they are bits of a set.
    pub are_flags: bool,
    /// The bits of a set that hold a number instead.
    pub number: Option<NumberBits>,
}

/// Bits among flags that hold a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberBits {
    /// What the number is.
    pub name: &'static str,
    /// The bits, adjacent.
    pub mask: u64,
    /// Numbers with a name; the values are in the place of the mask.
    pub names: &'static [Named],
}

impl Names {
    /// The value as text: the name, or `Unknown(0x1f)`; of a set, the names joined by `|` with the
    /// bits without a name in hex, `0` if it is empty.
    pub fn text(&'static self, value: u64) -> impl fmt::Display {
        Text(self, value)
    }
}

struct Text(&'static Names, u64);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names, value) = *self;
        let short = |row: &Named| row.c_name.strip_prefix(names.prefix).unwrap_or(row.c_name);
        if !names.are_flags {
            return match names.rows.iter().find(|row| row.value == value) {
                Some(row) => f.pad(short(row)),
                None => write!(f, "Unknown({value:#x})"),
            };
        }
        if value == 0 {
            return f.write_str("0");
        }
        let (mut rest, mut separator) = (value, "");
        if let Some(NumberBits {
            name,
            mask,
            names: special,
        }) = names.number
        {
            let number = value & mask;
            rest &= !mask;
            match special.iter().find(|row| row.value == number) {
                Some(row) => write!(f, "{}", short(row))?,
                None if number == 0 => {}
                None => write!(f, "{name}({})", number >> mask.trailing_zeros())?,
            }
            if number != 0 && rest != 0 {
                separator = "|";
            }
        }
        let flags = rest;
        for row in names.rows.iter().filter(|row| flags & row.value == row.value) {
            write!(f, "{separator}{}", short(row))?;
            (rest, separator) = (rest & !row.value, "|");
        }
        match rest {
            0 => Ok(()),
            rest => write!(f, "{separator}{rest:#x}"),
        }
    }
}

/// What open enums and sets of flags have in common: names as data and as text.
macro_rules! with_names {
    ($name:ident, $prefix:literal, $are_flags:literal, $number:expr) => {
        impl $crate::layout::Value for $name {
            const KIND: $crate::CType = $crate::CType::Named(Self::TABLE);
        }

        impl $name {
            const TABLE: &'static $crate::Names = &$crate::Names {
                prefix: $prefix,
                rows: Self::NAMES,
                are_flags: $are_flags,
                number: $number,
            };
        }

        impl core::fmt::Display for $name {
            /// As [`Names::text`]($crate::Names::text).
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(&Self::TABLE.text(self.0.into()), f)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Defines a newtype whose values have names in a table.
macro_rules! open_struct {
    ($(#[$meta:meta])* $name:ident($repr:ty), $prefix:literal, $names:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Every named value.
            pub const NAMES: &'static [$crate::Named] = $names;

            /// The row of this value, if the headers name it.
            pub fn named(self) -> Option<&'static $crate::Named> {
                Self::NAMES.iter().find(|n| n.value == u64::from(self.0))
            }

            /// The name in C, if the headers have one.
            pub fn c_name(self) -> Option<&'static str> {
                self.named().map(|n| n.c_name)
            }
        }

        with_names! { $name, $prefix, false, None }
    };
}

/// Defines a newtype with associated constants. Rows are `since NAME = value`; the C name is prefix
/// and name.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty), $prefix:literal {
            $($since:ident $variant:ident = $value:literal,)*
        }
    ) => {
        open_struct! {
            $(#[$meta])* $name($repr), $prefix, &[$($crate::Named {
                c_name: concat!($prefix, stringify!($variant)),
                value: $value as u64,
                since: $crate::Since::$since,
            }),*]
        }

        impl $name {
            $(
                #[doc = concat!("`", $prefix, stringify!($variant), "`")]
                pub const $variant: Self = Self($value);
            )*
        }
    };
}

/// Numbers names from 0 on.
pub(crate) const fn numbered<const N: usize>(names: [&'static str; N], since: Since) -> [Named; N] {
    let mut rows = [Named {
        c_name: "",
        value: 0,
        since,
    }; N];
    let mut at = 0;
    while at < N {
        (rows[at].c_name, rows[at].value) = (names[at], at as u64);
        at += 1;
    }
    rows
}

/// Defines the names of the values from 0 on, in their order. A row stands for as many names as it
/// has numbers, each put between its two texts.
macro_rules! numbered_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident, $prefix:literal, $since:ident {
            $($before:literal [$($number:literal)*] $after:literal,)*
        }
    ) => {
        open_struct! {
            $(#[$meta])* $name(u32), $prefix,
            &$crate::open::numbered(
                [$($(concat!($prefix, $before, $number, $after)),*),*],
                $crate::Since::$since,
            )
        }
    };
}

/// Defines a set of flags. Rows are `since NAME = bits`; the C name is prefix and name. Behind the
/// rows may stand `number` and the [`NumberBits`].
macro_rules! flags {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty), $prefix:literal {
            $($since:ident $flag:ident = $value:literal,)*
        }
        $(number $number:expr)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $(
                #[doc = concat!("`", $prefix, stringify!($flag), "`")]
                pub const $flag: Self = Self($value);
            )*

            /// Every named flag, in the header's order.
            pub const NAMES: &'static [$crate::Named] = &[$($crate::Named {
                c_name: concat!($prefix, stringify!($flag)),
                value: $value as u64,
                since: $crate::Since::$since,
            }),*];

            /// True if all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Both sets together.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that no header names.
            pub const fn unnamed(self) -> $repr {
                self.0 & !(0 $(| $value)*)
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl core::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        with_names! { $name, $prefix, true, option!($($number)?) }
    };
}
