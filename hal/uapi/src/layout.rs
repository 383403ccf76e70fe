//! The layout of C's structs as data: what each field is called, where it lies and what it holds.
//!
//! [`CStruct`] and [`CField`] are constants, made from the definition of the Rust struct, so no
//! list of fields stands beside it. `tests/abi` compares them with the C headers, and a tracer
//! decodes by them.

use crate::Since;
use crate::open::Names;

/// A struct of C, or a view of a union inside one.
#[derive(Clone, Copy, Debug)]
pub struct CStruct {
    /// The type in C: `struct hl_cb_in`. Of a view, the struct that the union lies in.
    pub c_name: &'static str,
    /// The header that defines it.
    pub header: &'static str,
    /// The oldest header that has it.
    pub since: Since,
    /// Of a view: bytes from the start of the struct in C to the view.
    pub view_at: Option<usize>,
    /// Bytes.
    pub size: usize,
    /// Bytes in Linux 6.1, if the struct had another size there.
    pub size_6_1: Option<usize>,
    /// Every field, in order.
    pub fields: &'static [CField],
}

/// A field of a [`CStruct`].
#[derive(Clone, Copy, Debug)]
pub struct CField {
    /// The name in Rust: the name in C, unless C has several or none.
    pub name: &'static str,
    /// The oldest header that has it.
    pub since: Since,
    /// Each name in C, with the oldest header that has the name. Below an inner union it is a path:
    /// `alloc.mem_size`.
    pub c_names: &'static [(&'static str, Since)],
    /// Bytes from the start of the Rust struct.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// What the bytes hold.
    pub kind: CType,
    /// How a tracer prints it.
    pub print: Print,
    /// The field with the number of elements that count, if this is an array that has one. The
    /// number comes from the driver or the caller: check it before use.
    pub counted_by: Option<&'static str>,
}

/// What a field holds, in the byte order of the host.
#[derive(Clone, Copy, Debug)]
pub enum CType {
    /// An unsigned number.
    Unsigned,
    /// A signed number.
    Signed,
    /// A value of an open enum, or a set of flags.
    Named(&'static Names),
    /// Elements of one type.
    Array {
        /// The element.
        of: &'static CType,
        /// How many.
        len: usize,
    },
}

/// How a tracer prints a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Print {
    /// A number in decimal, a named value by its name.
    Plain,
    /// Numbers in hex: addresses, handles and masks.
    Hex,
    /// Bytes as text, up to the first zero.
    Text,
    /// Not at all: the name says that the field is padding or reserved.
    Hidden,
}

impl Print {
    /// `style`, unless the field is called `pad` or `reserved`, with or without a number.
    pub(crate) const fn of(name: &str, style: Self) -> Self {
        let mut rest = name.as_bytes();
        while let [b'_', inner @ ..] | [inner @ .., b'0'..=b'9'] = rest {
            rest = inner;
        }
        match rest {
            b"pad" | b"reserved" => Self::Hidden,
            _ => style,
        }
    }
}

/// A type that a field can have.
pub(crate) trait Value {
    const KIND: CType;
}

impl<T: Value, const N: usize> Value for [T; N] {
    const KIND: CType = CType::Array { of: &T::KIND, len: N };
}

macro_rules! numbers {
    ($($kind:ident: $($type:ty)*;)*) => {
        $($(impl Value for $type {
            const KIND: CType = CType::$kind;
        })*)*
    };
}

numbers! {
    Unsigned: u8 u16 u32 u64;
    Signed: i32 i64;
}

/// Defines structs with C's layout: plain data that any bytes make. A struct with padding that it
/// does not name does not compile.
///
/// ```text
/// struct Name = "type in C" of "header", since, 6.1: bytes { … }   a struct
/// struct Name in Outer.field as path of "header", since { … }      a view of a union in Outer
/// ```
///
/// Without a header it is `habanalabs_accel.h`. A field has the age of its struct, its own name in
/// C, and is printed as [`Print::Plain`], unless its row says otherwise:
///
/// - `#[since(V7)]`: an older header lacks it, or has something else in its place.
/// - `#[c("name", V7 "name")]`: its names in C, those that are younger with their age.
/// - `#[print(Hex)]`, `#[counted_by(field)]`.
macro_rules! c_structs {
    ($(
        $(#[doc = $doc:literal])*
        pub struct $name:ident $(= $c_name:literal)? $(in $outer:ident.$at:ident $(as $path:ident)?)?
            $(of $header:literal)? $(, $since:ident)? $(, 6.1: $size_6_1:literal)?
        { $($fields:tt)* }
    )*) => {
        $(c_struct! {
            #[doc = c_doc!([$($c_name)?] [$($header)?] [$($since)?])]
            #[doc = ""]
            $(#[doc = $doc])*
            pub struct $name {
                c_name: $($c_name)? $($outer::LAYOUT.c_name)?,
                header: either!($($header)?; "habanalabs_accel.h"),
                since: either!($($crate::Since::$since)?; $crate::Since::V6_1),
                view_at: option!($(core::mem::offset_of!($outer, $at))?),
                size_6_1: option!($($size_6_1)?),
            }
            [$($(stringify!($path), ".",)?)?]
            $($fields)*
        })*
    };
}

/// The first line of a struct's documentation; nothing for a view, which has no name in C.
macro_rules! c_doc {
    ([] $header:tt $since:tt) => {
        ""
    };
    ([$c_name:literal] [] [Gaudi3]) => {
        concat!("`", $c_name, "` of the Gaudi3 release's header.")
    };
    ([$c_name:literal] [] $since:tt) => {
        c_doc!([$c_name] ["habanalabs_accel.h"] $since)
    };
    ([$c_name:literal] [$header:literal] $since:tt) => {
        concat!("`", $c_name, "` of `", $header, "`.")
    };
}

/// The value before the semicolon, or the one behind it if there is none.
macro_rules! either {
    (; $default:expr) => {
        $default
    };
    ($value:expr; $default:expr) => {
        $value
    };
}

macro_rules! option {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// A field's names in C: those of its row, or its own behind the path of its struct.
macro_rules! c_names {
    ($since:expr, [$($path:tt)*], $field:ident) => {
        &[(concat!($($path)* stringify!($field)), $since)]
    };
    ($since:expr, $path:tt, $field:ident [$($($own:ident)? $c_name:literal),*]) => {
        &[$(($c_name, either!($($crate::Since::$own)?; $since))),*]
    };
}

/// Defines one struct and its [`CStruct`], whose head [`c_structs`] has completed.
macro_rules! c_struct {
    (
        $(#[doc = $doc:expr])*
        pub struct $name:ident {
            c_name: $c_name:expr,
            header: $header:expr,
            since: $since:expr,
            view_at: $view_at:expr,
            size_6_1: $size_6_1:expr,
        }
        $path:tt
        $(
            $(#[doc = $field_doc:literal])*
            $(#[since($field_since:ident)])?
            $(#[c($($($c_since:ident)? $c_field:literal),*)])?
            $(#[print($print:ident)])?
            $(#[counted_by($count:ident)])?
            pub $field:ident: $type:ty,
        )*
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            /// All zero.
            #[inline]
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        impl $name {
            /// The struct in C.
            pub const LAYOUT: $crate::CStruct = $crate::CStruct {
                c_name: $c_name,
                header: $header,
                since: $since,
                view_at: $view_at,
                size: size_of::<Self>(),
                size_6_1: $size_6_1,
                fields: &[$({
                    let since = either!($($crate::Since::$field_since)?; $since);
                    $crate::CField {
                        name: stringify!($field),
                        since,
                        c_names: c_names!(since, $path, $field $([$($($c_since)? $c_field),*])?),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                        kind: <$type as $crate::layout::Value>::KIND,
                        print: $crate::layout::Print::of(
                            stringify!($field),
                            either!($($crate::layout::Print::$print)?; $crate::layout::Print::Plain),
                        ),
                        counted_by: option!($({
                            // A name of a field, or this does not compile.
                            let _ = core::mem::offset_of!($name, $count);
                            stringify!($count)
                        })?),
                    }
                }),*],
            };
        }
    };
}
