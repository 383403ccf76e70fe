//! The rows of gaudi-verbs-sys and the enumerations of gaudi-verbs, about the headers of libibverbs
//! and the kernel's RDMA, in a form that a C compiler checks.

use std::ffi::{c_char, c_int, c_void};

use gaudi_verbs::provider::QpState;
use gaudi_verbs::{Access, AsyncEventType, AtomicCap, LinkLayer, Mtu, PortState, WcOpcode, WcStatus};
use gaudi_verbs_sys::consts::*;
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
    /// Bytes. Headers older than [`since`](Self::since) may have another size.
    pub size: usize,
    /// Whether C has more fields after these, so that the size is not compared.
    pub is_prefix: bool,
    /// Sizes in older headers, as (header, bytes).
    pub older: &'static [(u32, usize)],
    /// The oldest header that has it.
    pub since: Since,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A constant and its name in C.
#[derive(Clone, Debug)]
pub struct Constant {
    /// `IBV_ACCESS_LOCAL_WRITE`.
    pub c_name: String,
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

c_structs! { _compat_ibv_port_attr }

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
            struct $name:ident $(prefix $prefix:literal)? $(since $since:literal)? $(older $older:expr;)? {
                $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $path:literal)? $(| since $field_since:literal)?,)*
            }
        )*
    ) => {
        [$(Layout {
            c_type: concat!("struct ", stringify!($name)),
            header: $header,
            size: size_of::<$name>(),
            is_prefix: or!(false; $($prefix)?),
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
            struct $name:ident $(prefix $prefix:literal)? $(since $since:literal)? $(older $older:expr;)? { $($fields:tt)* }
        )*
    ) => {
        c_structs! { $($name)* }
    };
}

for_each_struct!(struct_types);

macro_rules! constant_rows {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr $(, @ $since:literal)?;)*) => {
        [$(Constant {
            c_name: stringify!($name).to_owned(),
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
    // A run of fields without a name of its own in C.
    let is_named = |field: &Field| !field.c_path.is_empty();
    rows.iter_mut().for_each(|row| row.fields.retain(is_named));
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
    rows.extend(enumerators());
    rows
}

/// Returns the rows of the enumerations of gaudi-verbs.
fn enumerators() -> Vec<Constant> {
    let mut rows = Vec::new();
    let mut push = |prefix: &str, name: String, value: u32| {
        // Names of newer headers than the oldest one.
        let is_new = name == "DEVICE_SPEED_CHANGE";
        rows.push(Constant {
            c_name: format!("{prefix}{name}"),
            value: value.into(),
            since: Since(if is_new { 65 } else { 44 }),
        });
    };
    macro_rules! named {
        ($($type:ident $prefix:literal;)*) => {$(
            // No enumerator is above 255.
            for value in u8::MIN..=u8::MAX {
                let name = $type(value.into()).to_string();
                if !name.starts_with("Unknown") {
                    push($prefix, name, value.into());
                }
            }
        )*};
    }
    named! {
        AsyncEventType "IBV_EVENT_";
        PortState "IBV_PORT_";
        QpState "IBV_QPS_";
        WcStatus "IBV_WC_";
    }
    macro_rules! listed {
        ($($type:ident $prefix:literal $get:expr, $($name:ident)*;)*) => {
            $($(push($prefix, stringify!($name).to_owned(), $get($type::$name));)*)*
        };
    }
    listed! {
        Access "IBV_ACCESS_" |flag: Access| flag.bits(),
            LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND RELAXED_ORDERING;
        AtomicCap "IBV_ATOMIC_" |cap: AtomicCap| cap.0, NONE HCA GLOB;
        LinkLayer "IBV_LINK_LAYER_" |layer: LinkLayer| layer.0.into(), UNSPECIFIED INFINIBAND ETHERNET;
        Mtu "IBV_" |mtu: Mtu| mtu.0.into(), MTU_1024 MTU_4096;
        WcOpcode "IBV_WC_" |opcode: WcOpcode| opcode.0,
            SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV TSO RECV RECV_RDMA_WITH_IMM;
    }
    rows
}

/// Returns the rows of every function that is looked up.
pub fn symbols() -> Vec<Symbol> {
    let mut rows = Vec::from(for_each_symbol!(symbol_rows));
    rows.extend(for_each_mlx5_symbol!(symbol_rows));
    rows
}

/// Rows that [`for_each_struct`] cannot express: paths into unions.
fn more_layouts() -> Vec<Layout> {
    use std::mem::offset_of;
    let field = |c_path, offset, size| Field {
        c_path,
        offset,
        size,
        since: Since(44),
    };
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
    let row = |c_type, size, fields| Layout {
        c_type,
        header: "verbs.h",
        size,
        is_prefix: false,
        older: &[],
        since: Since(44),
        fields,
    };
    vec![
        row("struct ibv_send_wr", size_of::<ibv_send_wr>(), send),
        row("struct ibv_wc", size_of::<ibv_wc>(), done),
        row("struct ibv_async_event", size_of::<ibv_async_event>(), event),
        row("union ibv_gid", size_of::<ibv_gid>(), gid),
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
        ibv_context_ops: alloc_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv;
    }
};
