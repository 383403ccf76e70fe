//! Macros that define structs, constants and symbol tables from rows. tests/abi turns the same rows
//! into assertions that a C compiler checks.

/// Defines structs of a header.
///
/// `field: type` has the same name in C, or that of `= "path"`; `= ""` is a run of fields of C.
/// `| since 65` is the oldest header that has it. `older` lists other sizes of older headers.
/// `prefix true` is the beginning of a struct that only the library allocates.
macro_rules! c_structs {
    (
        $header:literal;
        $(
            $(#[$doc:meta])*
            struct $name:ident $(prefix $prefix:literal)? $(since $since:literal)? $(older $older:expr;)? {
                $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $path:literal)? $(| since $field_since:literal)?,)*
            }
        )*
    ) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// All bytes zero, as `memset` leaves it.
            pub const fn zeroed() -> Self {
                // SAFETY: the header's structs are plain data: numbers, pointers and functions that
                // may be absent.
                unsafe { std::mem::zeroed() }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // The content is the library's.
                f.write_str(concat!("struct ", stringify!($name)))
            }
        }
    )*};
}

/// Defines constants of a header. `@ 65` is the oldest header that has it.
macro_rules! c_constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr $(, @ $since:literal)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        $(#[$doc])*
        pub const $name: $type = $value;
    )*};
}

/// Defines a table of functions that are looked up by name. Those of `required` must exist, those
/// of `optional` may be absent.
macro_rules! c_symbols {
    (
        $header:literal;
        $(#[$table_doc:meta])*
        $table:ident;
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
            /// Looks up every row. The error is the name of a required symbol that is missing.
            ///
            /// # Safety
            /// The library is the header's: its symbols have these types.
            pub(crate) unsafe fn look_up(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: a symbol of this name has this type, as the caller promises.
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
    };
}
