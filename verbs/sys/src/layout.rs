//! What is claimed about the headers, in a form that a C compiler can judge.

use std::ffi::{c_char, c_int, c_void};

/// The oldest rdma-core whose header has a name, as far as Debian ships it: 44, 56 or 65.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Since(pub u32);

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its path in C.
    pub c_path: &'static str,
    /// Bytes from the beginning of the struct.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The oldest header that has it.
    pub since: Since,
}

/// A struct and its counterpart in C.
#[derive(Clone, Debug)]
pub struct Layout {
    /// `struct ibv_sge`.
    pub c_type: &'static str,
    /// The header that defines it, below `infiniband/`.
    pub header: &'static str,
    /// Bytes, and in headers older than that of [`since`](Self::since) perhaps another number.
    pub size: usize,
    /// Whether the struct grew at its front: offsets count from its end then.
    pub from_end: bool,
    /// Sizes in older headers, as (header, bytes).
    pub older: &'static [(u32, usize)],
    /// The oldest header that has it.
    pub since: Since,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A constant and its name in C.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// `IBV_ACCESS_LOCAL_WRITE`.
    pub c_name: &'static str,
    /// Its value.
    pub value: u64,
    /// The oldest header that has it.
    pub since: Since,
}

/// A function that is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// The symbol version that brought it (`IBVERBS_1.12`).
    pub version: &'static str,
    /// The header that declares it, below `infiniband/`.
    pub header: &'static str,
    /// The oldest header that declares it.
    pub since: Since,
    /// The type of a pointer to it, in C.
    pub prototype: fn() -> String,
}

/// A function pointer in a struct, through which the inline functions call.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// `struct ibv_context_ops`.
    pub c_type: &'static str,
    /// The field.
    pub field: &'static str,
    /// Its type, in C.
    pub prototype: fn() -> String,
}

/// The row of a field, whose type is the one that Rust calls it with.
pub(crate) const fn operation<S, F: CFunction>(
    c_type: &'static str,
    field: &'static str,
    _: fn(&S) -> Option<F>,
) -> Operation {
    Operation {
        c_type,
        field,
        prototype: F::c,
    }
}

/// The type of a pointer to a function, in C.
pub(crate) trait CFunction {
    /// `int (*)(struct ibv_cq *, int)`.
    fn c() -> String;
}

macro_rules! c_functions {
    ($(($($argument:ident)*))*) => {
        $(impl<Return: CType, $($argument: CType),*> CFunction for unsafe extern "C" fn($($argument),*) -> Return {
            fn c() -> String {
                prototype::<Return>(&[$($argument::c()),*])
            }
        })*
    };
}

c_functions! { (A) (A B) (A B C) (A B C D) (A B C D E) }

/// A type that stands in a prototype, in C.
pub trait CType {
    /// `uint32_t`, `struct ibv_qp *`.
    fn c() -> String;
}

macro_rules! c_types {
    ($($rust:ty = $c:literal,)*) => {
        $(impl CType for $rust {
            fn c() -> String {
                $c.to_owned()
            }
        })*
    };
}

c_types! {
    () = "void",
    c_char = "char",
    c_void = "void",
    c_int = "int",
    u8 = "uint8_t",
    u16 = "uint16_t",
    u32 = "uint32_t",
    u64 = "uint64_t",
    usize = "size_t",
    isize = "ssize_t",
}

impl<T: CType> CType for *mut T {
    fn c() -> String {
        format!("{} *", T::c())
    }
}

impl<T: CType> CType for *const T {
    fn c() -> String {
        format!("const {} *", T::c())
    }
}

/// Structs as the header defines them, each with a row that a C compiler compares.
///
/// `field: type` has the same name in C; `= "path"` gives another one; `| since 65` is the oldest header that has it.
macro_rules! c_structs {
    (
        $header:literal;
        $(
            $(#[$doc:meta])*
            struct $name:ident $(since $since:literal)? $(older $older:expr;)? {
                $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $path:literal)? $(| since $field_since:literal)?,)*
            }
        )*
    ) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl $name {
                /// All bytes zero, as `memset` leaves it.
                pub const fn zeroed() -> Self {
                    // SAFETY: the header's structs are plain data: numbers, pointers and functions that may be absent.
                    unsafe { std::mem::zeroed() }
                }
            }

            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    // What is inside belongs to the library.
                    f.write_str(concat!("struct ", stringify!($name)))
                }
            }

            impl $crate::layout::CType for $name {
                fn c() -> String {
                    concat!("struct ", stringify!($name)).to_owned()
                }
            }
        )*

        /// The rows of this module.
        pub(crate) fn layouts() -> Vec<$crate::layout::Layout> {
            vec![$(
                $crate::layout::Layout {
                    c_type: concat!("struct ", stringify!($name)),
                    header: $header,
                    size: size_of::<$name>(),
                    from_end: false,
                    older: c_structs!(@older $($older)?),
                    since: $crate::layout::Since(c_structs!(@since $($since)?)),
                    fields: vec![$($crate::layout::Field {
                        c_path: c_structs!(@path $field $($path)?),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                        since: $crate::layout::Since(c_structs!(@since $($field_since)?)),
                    },)*],
                },
            )*]
        }
    };
    (@path $field:ident) => { stringify!($field) };
    (@path $field:ident $path:literal) => { $path };
    (@since) => { 44 };
    (@since $since:literal) => { $since };
    (@older) => { &[] };
    (@older $older:expr) => { $older };
}

/// Constants as the header defines them, each with a row that a C compiler compares.
macro_rules! c_constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr $(, @ $since:literal)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            $(#[$doc])*
            pub const $name: $type = $value;
        )*

        /// The rows of this module.
        pub const CONSTANTS: &[$crate::layout::Constant] = &[$(
            $crate::layout::Constant {
                c_name: stringify!($name),
                value: $name as u64,
                since: $crate::layout::Since(c_constants!(@since $($since)?)),
            },
        )*];
    };
    (@since) => { 44 };
    (@since $since:literal) => { $since };
}

/// A table of functions that is filled by name. Those of `required` must be there, those of `optional` may be absent.
macro_rules! c_symbols {
    (
        $header:literal;
        $(#[$table_doc:meta])*
        $table:ident, $rows:ident;
        required { $($(#[$rdoc:meta])* $rversion:literal fn $rname:ident($($rarg:ident: $rtype:ty),*) -> $rret:ty;)* }
        optional { $($(#[$odoc:meta])* $oversion:literal @ $osince:literal fn $oname:ident($($oarg:ident: $otype:ty),*) -> $oret:ty;)* }
    ) => {
        $(#[$table_doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$rdoc])* pub $rname: unsafe extern "C" fn($($rarg: $rtype),*) -> $rret,)*
            $($(#[$odoc])* #[doc = concat!(" Since `", $oversion, "`.")]
            pub $oname: Option<unsafe extern "C" fn($($oarg: $otype),*) -> $oret>,)*
        }

        impl $table {
            /// Looks every row up. The error is the name of a required one that is absent.
            ///
            /// # Safety
            /// The library is the one that the header describes: its symbols have these types.
            pub(crate) unsafe fn look_up(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: a symbol of this name has this type, by the caller's word and the check against the headers.
                        $rname: *unsafe { library.get(concat!(stringify!($rname), "\0").as_bytes()) }
                            .map_err(|_| stringify!($rname))?,
                    )*
                    $(
                        // SAFETY: as above.
                        $oname: unsafe { library.get(concat!(stringify!($oname), "\0").as_bytes()) }.ok().map(|symbol| *symbol),
                    )*
                })
            }
        }

        /// The rows of this table.
        pub(crate) const $rows: &[$crate::layout::Symbol] = &[
            $($crate::layout::Symbol {
                name: stringify!($rname),
                version: $rversion,
                header: $header,
                since: $crate::layout::Since(44),
                prototype: || prototype::<$rret>(&[$(<$rtype as $crate::layout::CType>::c()),*]),
            },)*
            $($crate::layout::Symbol {
                name: stringify!($oname),
                version: $oversion,
                header: $header,
                since: $crate::layout::Since($osince),
                prototype: || prototype::<$oret>(&[$(<$otype as $crate::layout::CType>::c()),*]),
            },)*
        ];
    };
}

/// `int (*)(struct ibv_qp *, int)`.
pub(crate) fn prototype<Return: CType>(arguments: &[String]) -> String {
    let arguments = if arguments.is_empty() {
        "void".to_owned()
    } else {
        arguments.join(", ")
    };
    format!("{} (*)({arguments})", Return::c())
}
