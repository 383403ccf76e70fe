//! [`open_enum!`]: enumerations of C as types that also hold unknown values.

/// Defines an open enumeration: constants, and a `Display` of their names. A row is the value, the
/// constant, its documentation, and the text of `Display` if that is not the constant's name.
macro_rules! open_enum {
    (
        $(#[$doc:meta])*
        $name:ident($inner:ty) { $($value:literal $variant:ident $what:literal $(= $text:literal)?,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            $(#[doc = $what] pub const $variant: Self = Self($value);)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self.0 {
                    $($value => [$($text,)? stringify!($variant)][0],)*
                    other => return write!(f, "Unknown({other:#x})"),
                })
            }
        }
    };
    // An enumeration whose `Debug` is its `Display`.
    (named $($rest:tt)*) => {
        open_enum! { $($rest)* }
        open_enum! { @debug $($rest)* }
    };
    (@debug $(#[$doc:meta])* $name:ident $($rest:tt)*) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use open_enum;
