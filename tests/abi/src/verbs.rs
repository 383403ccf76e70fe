//! The rows of gaudi-verbs-sys about the headers of libibverbs and the kernel's RDMA, in a form
//! that a C compiler checks.

use std::ffi::{c_char, c_int, c_void};

use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::extended::verbs_context;
use gaudi_verbs_sys::mlx5::*;
use gaudi_verbs_sys::types::*;
use gaudi_verbs_sys::uverbs::*;
use gaudi_verbs_sys::{
    Symbols, for_each_constant, for_each_mlx5_symbol, for_each_struct, for_each_symbol,
    for_each_uverbs_struct,
};

use crate::layouts::field_size;

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

/// Returns the row of a field, with the type that Rust uses.
const fn operation<S, F: CFunction>(
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
trait CFunction {
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

c_functions! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) }

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
    ibv_gid = "union ibv_gid",
    be64 = "__be64",
}

impl<T: CType> CType for *mut T {
    fn c() -> String {
        format!("{} *", T::c())
    }
}

macro_rules! c_structs {
    ($($name:ident)*) => {$(
        impl CType for $name {
            fn c() -> String {
                concat!("struct ", stringify!($name)).to_owned()
            }
        }
    )*};
}

c_structs! { _compat_ibv_port_attr ibv_dmah ibv_dm }

impl<T: CType> CType for *const T {
    fn c() -> String {
        format!("const {} *", T::c())
    }
}

/// Formats the type of a pointer to a function: `int (*)(struct ibv_qp *, int)`.
fn prototype<Return: CType>(arguments: &[String]) -> String {
    let arguments = if arguments.is_empty() {
        "void".to_owned()
    } else {
        arguments.join(", ")
    };
    format!("{} (*)({arguments})", Return::c())
}

macro_rules! since {
    () => {
        Since(44)
    };
    ($since:literal) => {
        Since($since)
    };
}

macro_rules! or {
    ($default:expr; ) => {
        $default
    };
    ($default:expr; $value:expr) => {
        $value
    };
}

/// The rows of structs.
macro_rules! struct_rows {
    (
        $header:literal;
        $(
            $(#[$doc:meta])*
            struct $name:ident $(since $since:literal)? $(older $older:expr;)? {
                $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $path:literal)? $(| since $field_since:literal)?,)*
            }
        )*
    ) => {
        [$(Layout {
            c_type: concat!("struct ", stringify!($name)),
            header: $header,
            size: size_of::<$name>(),
            from_end: false,
            older: or!(&[]; $($older)?),
            since: since!($($since)?),
            fields: vec![$(Field {
                c_path: or!(stringify!($field); $($path)?),
                offset: std::mem::offset_of!($name, $field),
                size: field_size(|all: &$name| &all.$field),
                since: since!($($field_since)?),
            },)*],
        },)*]
    };
}

/// The types of structs.
macro_rules! struct_types {
    (
        $header:literal;
        $(
            $(#[$doc:meta])*
            struct $name:ident $(since $since:literal)? $(older $older:expr;)? { $($fields:tt)* }
        )*
    ) => {
        c_structs! { $($name)* }
    };
}

for_each_struct!(struct_types);

macro_rules! constant_rows {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr $(, @ $since:literal)?;)*) => {
        [$(Constant {
            c_name: stringify!($name),
            value: $name as u64,
            since: since!($($since)?),
        },)*]
    };
}

macro_rules! symbol_rows {
    (
        $header:literal;
        $(#[$table_doc:meta])*
        $table:ident;
        required { $($(#[$rdoc:meta])* $rversion:literal fn $rname:ident($($rarg:ident: $rtype:ty),*) -> $rret:ty;)* }
        optional { $($(#[$odoc:meta])* $oversion:literal @ $osince:literal fn $oname:ident($($oarg:ident: $otype:ty),*) -> $oret:ty;)* }
    ) => {
        [
            $(Symbol {
                name: stringify!($rname),
                since: Since(44),
                prototype: operation("", "", |table: &$table| Some(table.$rname)).prototype,
            },)*
            $(Symbol {
                name: stringify!($oname),
                since: Since($osince),
                prototype: operation("", "", |table: &$table| table.$oname).prototype,
            },)*
        ]
    };
}

/// Returns the rows of every struct that a header defines.
pub fn layouts() -> Vec<Layout> {
    let mut rows = Vec::from(for_each_struct!(struct_rows));
    rows.extend(for_each_uverbs_struct!(struct_rows));
    rows.extend(more_layouts());
    rows
}

/// Returns the rows of every constant.
#[expect(clippy::cast_lossless, reason = "the constants have several types")]
pub fn constants() -> Vec<Constant> {
    let mut rows = Vec::from(for_each_constant!(constant_rows));
    rows.extend(constant_rows! {
        IBV_SYSFS_NAME_MAX: usize = _;
        IBV_SYSFS_PATH_MAX: usize = _;
        UVERBS_OBJECT_MR: u16 = _;
        UVERBS_METHOD_MR_DESTROY: u16 = _;
        UVERBS_METHOD_REG_DMABUF_MR: u16 = _;
        UVERBS_ATTR_F_MANDATORY: u16 = _;
        MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: c_int = _, @ 56;
    });
    rows
}

/// Returns the rows of every function that is looked up.
pub fn symbols() -> Vec<Symbol> {
    let mut rows = Vec::from(for_each_symbol!(symbol_rows));
    rows.extend(for_each_mlx5_symbol!(symbol_rows));
    rows
}

/// Rows that [`for_each_struct`] cannot express: offsets from the end of `verbs_context`, and paths
/// into unions.
fn more_layouts() -> Vec<Layout> {
    use std::mem::offset_of;
    let field = |c_path, offset, size| Field {
        c_path,
        offset,
        size,
        since: Since(44),
    };
    macro_rules! from_end {
        ($($field:ident)*) => {
            vec![$(field(stringify!($field), offset_of!(verbs_context, $field), 8),)*]
        };
    }
    let mut tail = from_end!(
        query_port advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm query_rt_values create_cq_ex query_device_ex
        create_qp_ex get_srq_num create_srq_ex close_xrcd sz
    );
    tail.push(field(
        "context",
        offset_of!(verbs_context, context),
        size_of::<ibv_context>(),
    ));
    macro_rules! inside {
        ($outer:ident: $($path:literal => $($member:ident).+ : $size:expr;)*) => {
            vec![$(field($path, offset_of!($outer, $($member).+), $size),)*]
        };
    }
    let send = inside!(ibv_send_wr:
        "invalidate_rkey" => imm_data_or_invalidate_rkey: 4;
        "wr.rdma.remote_addr" => wr.rdma.remote_addr: 8;
        "wr.rdma.rkey" => wr.rdma.rkey: 4;
        "wr.atomic.remote_addr" => wr.atomic.remote_addr: 8;
        "wr.atomic.compare_add" => wr.atomic.compare_add: 8;
        "wr.atomic.swap" => wr.atomic.swap: 8;
        "wr.atomic.rkey" => wr.atomic.rkey: 4;
        "wr.ud.ah" => wr.ud.ah: 8;
        "wr.ud.remote_qpn" => wr.ud.remote_qpn: 4;
        "wr.ud.remote_qkey" => wr.ud.remote_qkey: 4;
        "bind_mw.mw" => bind_mw.mw: 8;
        "bind_mw.rkey" => bind_mw.rkey: 4;
        "bind_mw.bind_info" => bind_mw.bind_info: size_of::<ibv_mw_bind_info>();
        "bind_mw.bind_info.length" => bind_mw.bind_info.length: 8;
    );
    let done = inside!(ibv_wc: "invalidated_rkey" => imm_data_or_invalidated_rkey: 4;);
    let event = inside!(ibv_async_event:
        "element.qp" => element.qp: 8;
        "element.port_num" => element.port_num: 4;
    );
    let gid = vec![field("raw", 0, 16)];
    let row = |c_type, size, from_end, fields| Layout {
        c_type,
        header: "verbs.h",
        size,
        from_end,
        older: &[],
        since: Since(44),
        fields,
    };
    vec![
        row("struct verbs_context", size_of::<verbs_context>(), true, tail),
        row("struct ibv_send_wr", size_of::<ibv_send_wr>(), false, send),
        row("struct ibv_wc", size_of::<ibv_wc>(), false, done),
        row(
            "struct ibv_async_event",
            size_of::<ibv_async_event>(),
            false,
            event,
        ),
        row("union ibv_gid", size_of::<ibv_gid>(), false, gid),
    ]
}

/// The function pointers in structs that are called.
pub const OPERATIONS: &[Operation] = {
    macro_rules! rows {
        ($($struct:ident: $($field:ident)*;)*) => {
            &[$($(operation(concat!("struct ", stringify!($struct)), stringify!($field), |all: &$struct| all.$field),)*)*]
        };
    }
    rows! {
        ibv_context_ops: alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv;
        verbs_context: query_port advise_mr alloc_null_mr reg_dm_mr free_dm query_device_ex create_qp_ex;
    }
};
