//! Functions of providers' own libraries: mlx5's data direct, EFA's SRD.
//!
//! A provider's library is loaded by libibverbs when there is such a device; asking for it here finds that very one.
//!
//! gaudi-ibverbs uses mlx5's. EFA's are bound, and checked against the header, for whoever makes SRD queue pairs; nothing in this
//! repository does, and no EFA has run them.

#![expect(
    unsafe_code,
    reason = "a symbol of a provider's library has the type that we say"
)]
#![allow(missing_docs, reason = "fields are the headers' own, under their names")]

use std::ffi::{c_char, c_int};

use crate::layout::{Constant, Since, prototype};
use crate::library::{LoadError, load};
use crate::types::{ibv_context, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr_ex};

mod mlx5 {
    use super::*;

    c_symbols! {
        "mlx5dv.h";
        /// Functions of `libmlx5.so.1`.
        Mlx5Symbols, SYMBOLS;
        required {}
        optional {
            /// A region of a dma-buf, with flags of mlx5; NULL and errno.
            "MLX5_1.25" @ 56 fn mlx5dv_reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int, mlx5_access: c_int
            ) -> *mut ibv_mr;
            /// The function past the root complex that data direct takes, as a path below /sys; an errno.
            "MLX5_1.25" @ 56 fn mlx5dv_get_data_direct_sysfs_path(
                context: *mut ibv_context, path: *mut c_char, len: usize
            ) -> c_int;
        }
    }
}

mod efa {
    use super::*;

    c_structs! {
        "efadv.h";

        /// What an EFA can.
        struct efadv_device_attr {
            comp_mask: u64,
            max_sq_wr: u32,
            max_rq_wr: u32,
            max_sq_sge: u16,
            max_rq_sge: u16,
            inline_buf_size: u16,
            inline_buf_size_ex: u16 | since 65,
            device_caps: u32,
            max_rdma_size: u32,
        }

        /// A queue pair of EFA to make.
        struct efadv_qp_init_attr older &[(44, 16), (56, 16)]; {
            comp_mask: u64,
            driver_qp_type: u32,
            flags: u16 | since 56,
            sl: u8 | since 56,
            reserved: u8 | since 65,
            wr_flags: u64 | since 65,
        }
    }

    c_symbols! {
        "efadv.h";
        /// Functions of `libefa.so.1`.
        EfaSymbols, SYMBOLS;
        required {}
        optional {
            /// What the device can; an errno.
            "EFA_1.1" @ 44 fn efadv_query_device(
                context: *mut ibv_context, attr: *mut efadv_device_attr, len: u32
            ) -> c_int;
            /// A queue pair with EFA's own attributes; NULL and errno.
            "EFA_1.1" @ 44 fn efadv_create_qp_ex(
                context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex, efa: *mut efadv_qp_init_attr, len: u32
            ) -> *mut ibv_qp;
        }
    }
}

pub use efa::{EfaSymbols, efadv_device_attr, efadv_qp_init_attr};
pub use mlx5::Mlx5Symbols;

pub(crate) use efa::{SYMBOLS as EFA_SYMBOLS, layouts};
pub(crate) use mlx5::SYMBOLS as MLX5_SYMBOLS;

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`: past the root complex.
pub const MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: c_int = 1;
/// `EFADV_QP_DRIVER_TYPE_SRD`: scalable reliable datagrams.
pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;

/// The rows of this module.
pub(crate) const CONSTANTS: &[Constant] = &[
    Constant {
        c_name: "MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT",
        value: MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT as u64,
        since: Since(56),
    },
    Constant {
        c_name: "EFADV_QP_DRIVER_TYPE_SRD",
        value: EFADV_QP_DRIVER_TYPE_SRD as u64,
        since: Since(44),
    },
];

macro_rules! provider {
    ($(#[$doc:meta])* $name:ident, $symbols:ident, $file:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            symbols: $symbols,
            _handle: libloading::Library,
        }

        impl $name {
            /// Loads it, or finds it loaded.
            pub fn open() -> Result<Self, LoadError> {
                let handle = load($file)?;
                // SAFETY: a library of this name is the provider's, whose functions have the types of its header.
                let symbols = unsafe { $symbols::look_up(&handle) }
                    .map_err(|name| LoadError::Symbol { library: $file, name })?;
                Ok(Self { symbols, _handle: handle })
            }

            /// Its functions. They are for devices of this provider alone.
            pub fn symbols(&self) -> &$symbols {
                &self.symbols
            }
        }
    };
}

provider! {
    /// `libmlx5.so.1`.
    Mlx5, Mlx5Symbols, "libmlx5.so.1"
}
provider! {
    /// `libefa.so.1`.
    Efa, EfaSymbols, "libefa.so.1"
}
