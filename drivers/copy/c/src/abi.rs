//! Declarations of the C interface: each is the Rust item and a row of the header.

/// The C spelling of a type.
pub(crate) trait CType {
    /// Returns the declaration of `name` with this type.
    fn declare(name: &str) -> String;
}

macro_rules! spelled {
    ($($type:ty => $c:literal),* $(,)?) => {$(
        impl $crate::abi::CType for $type {
            fn declare(name: &str) -> String {
                format!("{} {name}", $c).trim_end().to_owned()
            }
        }
    )*};
}

spelled! {
    u32 => "uint32_t",
    u64 => "uint64_t",
    i32 => "int32_t",
    u8 => "uint8_t",
    std::ffi::c_char => "char",
    std::ffi::c_void => "void",
}

impl<T: CType> CType for *const T {
    fn declare(name: &str) -> String {
        format!("const {}", T::declare(&format!("*{name}")))
    }
}

impl<T: CType> CType for *mut T {
    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

/// A constant of the header.
pub(crate) struct ConstantRow {
    pub(crate) text: &'static [&'static str],
    pub(crate) name: &'static str,
    pub(crate) value: u64,
}

/// A structure of the header.
pub(crate) struct StructRow {
    pub(crate) text: &'static [&'static str],
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [FieldRow],
}

/// A field of a structure.
pub(crate) struct FieldRow {
    pub(crate) text: &'static [&'static str],
    pub(crate) name: &'static str,
    pub(crate) declare: fn(&str) -> String,
    pub(crate) offset: usize,
}

/// A function of the header.
pub(crate) struct FunctionRow {
    pub(crate) text: &'static [&'static str],
    pub(crate) name: &'static str,
    pub(crate) result: fn(&str) -> String,
    pub(crate) parameters: &'static [Parameter],
}

/// The name of a parameter, and how it is declared.
pub(crate) type Parameter = (&'static str, fn(&str) -> String);

/// Declares constants, and `$rows` with all of them.
macro_rules! c_constants {
    ($rows:ident: $($(#[doc = $text:literal])* $name:ident = $value:expr;)*) => {
        $($(#[doc = $text])* pub const $name: u32 = $value;)*
        pub(crate) const $rows: &[$crate::abi::ConstantRow] = &[$($crate::abi::ConstantRow {
            text: &[$($text),*],
            name: stringify!($name),
            value: $name as u64,
        }),*];
    };
}

/// Declares structures with C's layout, and `$rows` with all of them. `size` is the first field of
/// each, so a structure of zeros has an invalid one. `first of` is the size in its first release: a
/// later one adds fields at the end.
macro_rules! c_structs {
    ($rows:ident: $(
        $(#[doc = $text:literal])*
        struct $name:ident as $c:ident, first of $first:literal bytes {
            $($(#[doc = $field_text:literal])* $field:ident as $c_field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[doc = $text])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub struct $name {
                $($(#[doc = $field_text])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { $($field: Default::default(),)* }.sized()
                }
            }

            impl $name {
                fn sized(mut self) -> Self {
                    self.size = size_of::<Self>() as u32;
                    self
                }
            }

            impl $crate::abi::CType for $name {
                fn declare(name: &str) -> String {
                    format!("struct {} {name}", stringify!($c)).trim_end().to_owned()
                }
            }

            impl $crate::pointer::Sized32 for $name {
                const FIRST: usize = $first;
            }
            const _: () = assert!($first <= size_of::<$name>());
        )*
        pub(crate) const $rows: &[$crate::abi::StructRow] = &[$($crate::abi::StructRow {
            text: &[$($text),*],
            name: stringify!($c),
            size: size_of::<$name>(),
            fields: &[$($crate::abi::FieldRow {
                text: &[$($field_text),*],
                name: stringify!($c_field),
                declare: <$type as $crate::abi::CType>::declare,
                offset: std::mem::offset_of!($name, $field),
            }),*],
        }),*];
    };
}

/// Declares functions, and `$rows` with all of them. The body returns `Result<(), Failure>`.
macro_rules! c_functions {
    ($rows:ident: $(
        $(#[doc = $text:literal])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {
        $(
            $(#[doc = $text])*
            ///
            /// # Safety
            /// - A pointer is null, or valid for what the function reads and writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
                $crate::guard::guarded(move || $body)
            }
        )*
        pub(crate) const $rows: &[$crate::abi::FunctionRow] = &[$($crate::abi::FunctionRow {
            text: &[$($text),*],
            name: stringify!($name),
            result: |name| format!("int {name}"),
            parameters: &[$((stringify!($arg), <$type as $crate::abi::CType>::declare)),*],
        }),*];
    };
}
