//! [`Library`]: libibverbs, opened at run time.

#![expect(
    unsafe_code,
    reason = "opening a library runs its initialisers, and a symbol has the type that we say"
)]

use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::types::*;

/// Library to load. The number is that of the ABI, unchanged since 2005.
const NAME: &str = "libibverbs.so.1";

/// libibverbs in this process. It is never unloaded: providers have threads and handlers.
#[derive(Debug)]
pub struct Library {
    symbols: Symbols,
    _handle: libloading::Library,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader did not find or load it.
    #[error("{name} cannot be loaded: {message}")]
    NotLoaded {
        /// Name of the library.
        name: &'static str,
        /// Message of the loader.
        message: String,
    },
    /// It lacks a function: it is older than Debian 12's, or another library.
    #[error("{library} has no function {name}")]
    Symbol {
        /// The library.
        library: &'static str,
        /// The function.
        name: &'static str,
    },
}

impl LoadError {
    /// Returns what to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::NotLoaded { .. } => {
                "install libibverbs and its providers: `apt install libibverbs1 ibverbs-providers` (Debian, Ubuntu), \
                 `dnf install libibverbs` (Fedora, RHEL)"
            }
            Self::Symbol { .. } => "install rdma-core 44 or newer",
        }
    }
}

impl Library {
    /// Returns the library of this process. The first successful call loads it; a failure is not
    /// cached.
    ///
    /// # Errors
    /// The library cannot be loaded, or is too old.
    pub fn open() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self::open_named(NAME)?;
        Ok(LOADED.get_or_init(|| library))
    }

    fn open_named(name: &'static str) -> Result<Self, LoadError> {
        let handle = load(name)?;
        // SAFETY: a library of this name is libibverbs, whose functions have the types of its
        // header.
        let symbols = unsafe { Symbols::look_up(&handle) }.map_err(|symbol| LoadError::Symbol {
            library: name,
            name: symbol,
        })?;
        Ok(Self {
            symbols,
            _handle: handle,
        })
    }

    /// Returns its functions.
    #[inline]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

/// Loads a library with `RTLD_LAZY` and `RTLD_LOCAL`. Functions are called only through tables that
/// were looked up: a missing one would end the process.
pub(crate) fn load(name: &'static str) -> Result<libloading::Library, LoadError> {
    // SAFETY: the initialisers of rdma-core's libraries only set up their own state; the search
    // path is the loader's own.
    unsafe { libloading::Library::new(name) }.map_err(|error| LoadError::NotLoaded {
        name,
        message: match error {
            libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
            other => other.to_string(),
        },
    })
}

/// Passes the functions of verbs.h to a macro, as [`for_each_struct`](crate::for_each_struct) does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_symbol {
    ($then:ident) => { $then! {
    "verbs.h";
    /// Functions of libibverbs, as their man pages describe them (`man 3 ibv_open_device`).
    /// Pointers are the library's own and live. Calls on one object may come from several threads
    /// unless the page excludes it.
    Symbols;
    required {
        /// Returns the devices as an array that ends with NULL; writes its length to the argument.
        "IBVERBS_1.1" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
        /// Frees the array; open devices stay open.
        "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device) -> ();
        /// Opens a device; NULL and errno.
        "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        /// Closes it; its objects must be freed before.
        "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;
        /// Takes an event; -1 and errno.
        "IBVERBS_1.1" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        /// Acknowledges an event: its object cannot be destroyed before.
        "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event) -> ();
        /// Queries the device's attributes; an errno.
        "IBVERBS_1.1" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        /// Queries the port's attributes up to `flags`; an errno.
        "IBVERBS_1.1" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
        /// Allocates a protection domain; NULL and errno.
        "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        /// Frees it; an errno.
        "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        /// Registers memory of this process; NULL and errno.
        "IBVERBS_1.1" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut std::ffi::c_void, length: usize, access: c_int) -> *mut ibv_mr;
        /// Deregisters a region; an errno.
        "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        /// Creates a completion channel; NULL and errno.
        "IBVERBS_1.0" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        /// Destroys it; an errno.
        "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        /// Creates a completion queue; NULL and errno.
        "IBVERBS_1.1" fn ibv_create_cq(
            context: *mut ibv_context, cqe: c_int, cq_context: *mut std::ffi::c_void, channel: *mut ibv_comp_channel,
            comp_vector: c_int
        ) -> *mut ibv_cq;
        /// Destroys it, once its events are acknowledged; an errno.
        "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        /// Takes an event of a channel; -1 and errno.
        "IBVERBS_1.1" fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut std::ffi::c_void
        ) -> c_int;
        /// Acknowledges events.
        "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> ();
        /// Creates a shared receive queue; NULL and errno.
        "IBVERBS_1.1" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// Sets its limit; an errno.
        "IBVERBS_1.1" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
        /// Destroys it; an errno.
        "IBVERBS_1.1" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        /// Creates a queue pair; NULL and errno.
        "IBVERBS_1.1" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        /// Changes it; an errno.
        "IBVERBS_1.1" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        /// Queries it; an errno.
        "IBVERBS_1.1" fn ibv_query_qp(
            qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr
        ) -> c_int;
        /// Destroys it; an errno.
        "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        /// Creates an address handle; NULL and errno.
        "IBVERBS_1.1" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        /// Destroys it; an errno.
        "IBVERBS_1.1" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    }
    optional {
        /// Registers memory whose addresses count from `iova`; NULL and errno.
        "IBVERBS_1.7" @ 44 fn ibv_reg_mr_iova(
            pd: *mut ibv_pd, addr: *mut std::ffi::c_void, length: usize, iova: u64, access: c_int
        ) -> *mut ibv_mr;
        /// The same with access flags that a kernel may ignore.
        "IBVERBS_1.8" @ 44 fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd, addr: *mut std::ffi::c_void, length: usize, iova: u64, access: c_uint
        ) -> *mut ibv_mr;
        /// Lists all GIDs of all ports: their number, or a negative errno.
        "IBVERBS_1.11" @ 44 fn _ibv_query_gid_table(
            context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize
        ) -> isize;
        /// Registers a dma-buf; NULL and errno.
        "IBVERBS_1.12" @ 44 fn ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
        ) -> *mut ibv_mr;
        /// Registers memory of any kind; NULL and errno.
        "IBVERBS_1.15" @ 65 fn ibv_reg_mr_ex(pd: *mut ibv_pd, init: *mut ibv_mr_init_attr) -> *mut ibv_mr;
    }
    }};
}

for_each_symbol!(c_symbols);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_names_package() {
        let error = Library::open_named("libibverbs-that-is-not-there.so.1").expect_err("it is not there");
        let text = error.to_string();
        assert!(
            text.contains("libibverbs-that-is-not-there.so.1") && text.contains("cannot open"),
            "the library's name and the loader's message: {text}"
        );
        assert!(
            error.help().contains("apt install libibverbs1 ibverbs-providers"),
            "what to install: {}",
            error.help()
        );
    }

    #[test]
    fn wrong_library_names_missing_function() {
        let error = Library::open_named("libc.so.6").expect_err("libc is no libibverbs");
        assert_eq!(
            error,
            LoadError::Symbol {
                library: "libc.so.6",
                name: "ibv_get_device_list"
            },
            "the first function that is missing"
        );
    }
}
