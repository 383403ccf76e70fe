//! Functions of mlx5's own library, `libmlx5.so.1`: data direct.
//!
//! libibverbs loads the library when there is such a device. Opening it here finds the same one.

#![expect(
    unsafe_code,
    reason = "a symbol of a provider's library has the type of its header"
)]

use std::ffi::{c_char, c_int};

use crate::library::{LoadError, load};
use crate::types::{ibv_context, ibv_mr, ibv_pd};

const NAME: &str = "libmlx5.so.1";

/// Passes the functions of mlx5dv.h to a macro, as [`for_each_struct`](crate::for_each_struct)
/// does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_mlx5_symbol {
    ($then:ident) => { $then! {
        "mlx5dv.h";
        /// Functions of `libmlx5.so.1`.
        Mlx5Symbols;
        required {}
        optional {
            /// Registers a dma-buf with mlx5's own flags. Returns NULL and sets errno on failure.
            "MLX5_1.25" @ 56 fn mlx5dv_reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int, mlx5_access: c_int
            ) -> *mut ibv_mr;
            /// Writes the sysfs path of the data direct function below /sys. Returns an errno.
            "MLX5_1.25" @ 56 fn mlx5dv_get_data_direct_sysfs_path(
                context: *mut ibv_context, path: *mut c_char, len: usize
            ) -> c_int;
        }
    }};
}

for_each_mlx5_symbol!(c_symbols);

/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`: past the root complex.
pub const MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: c_int = 1;

/// `libmlx5.so.1` in this process.
#[derive(Debug)]
pub struct Mlx5 {
    symbols: Mlx5Symbols,
    _handle: libloading::Library,
}

impl Mlx5 {
    /// Loads the library, or finds it loaded.
    ///
    /// # Errors
    /// The loader's message.
    pub fn open() -> Result<Self, LoadError> {
        let handle = load(NAME)?;
        // SAFETY: a library of this name is mlx5's, whose functions have the types of its header.
        let symbols = unsafe { Mlx5Symbols::look_up(&handle) }
            .map_err(|name| LoadError::Symbol { library: NAME, name })?;
        Ok(Self {
            symbols,
            _handle: handle,
        })
    }

    /// Returns its functions, which are for devices of this provider alone.
    pub fn symbols(&self) -> &Mlx5Symbols {
        &self.symbols
    }
}
