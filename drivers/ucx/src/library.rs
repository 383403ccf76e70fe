//! The libraries of UCX that the process has loaded, and their functions.

#![allow(
    unsafe_code,
    reason = "dl_iterate_phdr(3), dlopen(3), dlsym(3) and functions of another library"
)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::Library;
use nix::libc;

use crate::abi::{
    Class, ConfigField, Function, IfaceAttr, ListLink, LogComponent, MdAttr, MemTypeEvent, UcsStatus,
};
use crate::opal;
use crate::release::{self, Release};

/// Paths of the loaded libraries of UCX.
#[derive(Debug, Default)]
struct Loaded {
    uct: Option<PathBuf>,
    ucs: Option<PathBuf>,
    ucm: Option<PathBuf>,
    ucp: Option<PathBuf>,
    /// Open MPI's portability layer.
    opal: Option<PathBuf>,
}

/// Why the plugin cannot serve the UCX of this process.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The process has no libuct, libucs and libucm.
    NotLoaded,
    /// No table for the release.
    UnknownRelease(String),
    /// The library lacks something that its release has.
    Mismatch(String),
}

/// The functions and objects of UCX that the plugin uses. They stay loaded for the process's life.
pub(crate) struct Ucx {
    pub(crate) release: &'static Release,
    pub(crate) calloc: unsafe extern "C" fn(usize, usize, *const c_char) -> *mut c_void,
    pub(crate) component_register: unsafe extern "C" fn(*mut c_void),
    pub(crate) tl_register: unsafe extern "C" fn(*mut c_void, *mut c_void),
    pub(crate) components_list: *mut ListLink,
    pub(crate) md_base_query: unsafe extern "C" fn(*mut MdAttr),
    pub(crate) iface_base_query: unsafe extern "C" fn(*mut c_void, *mut IfaceAttr),
    pub(crate) iface_init: unsafe extern "C" fn(
        *mut c_void,
        *const Class,
        *mut c_int,
        *const c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *const c_void,
        *const c_void,
    ) -> UcsStatus,
    pub(crate) iface_class: *const Class,
    pub(crate) ep_init: unsafe extern "C" fn(*mut c_void, *const Class, *mut c_int, *mut c_void) -> UcsStatus,
    pub(crate) ep_class: *const Class,
    pub(crate) class_cleanup: unsafe extern "C" fn(*const Class, *mut c_void, c_int),
    pub(crate) estimate_perf: Function,
    pub(crate) is_connected: Function,
    pub(crate) rkey_compare: Function,
    /// `None` before 1.20.
    pub(crate) query_v2: Option<Function>,
    pub(crate) find_system_device: unsafe extern "C" fn(*const c_void, *mut u8) -> UcsStatus,
    pub(crate) name_system_device: unsafe extern "C" fn(u8, *const c_char, c_uint) -> UcsStatus,
    pub(crate) event_enter: unsafe extern "C" fn(),
    pub(crate) event_leave: unsafe extern "C" fn(),
    pub(crate) event_dispatch: unsafe extern "C" fn(c_int, *mut MemTypeEvent),
    pub(crate) event_installers: *mut ListLink,
    pub(crate) md_config_table: *const ConfigField,
    pub(crate) iface_config_table: *const ConfigField,
    pub(crate) parsers: Parsers,
}

/// Functions of `ucs_config_parser_t`.
#[derive(Clone, Copy)]
pub(crate) struct Parsers {
    pub(crate) read_table: Function,
    pub(crate) clone_table: Function,
    pub(crate) release_table: Function,
    pub(crate) help_table: Function,
    pub(crate) read_bandwidth: Function,
    pub(crate) write_bandwidth: Function,
    pub(crate) read_time: Function,
    pub(crate) write_time: Function,
    pub(crate) clone_double: Function,
    pub(crate) read_bool: Function,
    pub(crate) write_bool: Function,
    pub(crate) clone_int: Function,
    pub(crate) release_nop: Function,
    pub(crate) help_generic: Function,
    pub(crate) doc_nop: Function,
}

// SAFETY: the pointers are to UCX's functions, constant tables, and list heads that change only
// while the library loads.
unsafe impl Send for Ucx {}
// SAFETY: as above.
unsafe impl Sync for Ucx {}

/// Writes to UCX's log.
pub(crate) struct Logger {
    pub(crate) dispatch: unsafe extern "C" fn(
        *const c_char,
        c_uint,
        *const c_char,
        c_uint,
        *const LogComponent,
        *const c_char,
        ...
    ),
    pub(crate) handlers: unsafe extern "C" fn() -> c_uint,
}

static UCX: OnceLock<Ucx> = OnceLock::new();

/// UCX, after [`find`] succeeded.
///
/// # Panics
/// If the plugin is not registered: UCX calls it only afterwards.
pub(crate) fn ucx() -> &'static Ucx {
    UCX.get().expect("UCX calls the plugin after it is registered")
}

/// Takes a UCX of a test's own.
#[cfg(test)]
pub(crate) fn set(make: impl FnOnce() -> Ucx) {
    UCX.get_or_init(make);
}

/// Finds the process's UCX and its release. The first success is kept.
pub(crate) fn find() -> Result<&'static Ucx, Refusal> {
    if let Some(ucx) = UCX.get() {
        return Ok(ucx);
    }
    let ucx = resolve(&loaded())?;
    Ok(UCX.get_or_init(|| ucx))
}

/// UCX's log; `None` if the process has no libucs.
pub(crate) fn logger() -> Option<&'static Logger> {
    static LOGGER: OnceLock<Option<Logger>> = OnceLock::new();
    let make = || {
        let ucs = open(loaded().ucs.as_deref()?)?;
        // SAFETY: libucs declares both functions so since 1.11.
        unsafe {
            Some(Logger {
                dispatch: symbol(ucs, "ucs_log_dispatch").ok()?,
                handlers: symbol(ucs, "ucs_log_num_handlers").ok()?,
            })
        }
    };
    // A process may load UCX later, so only a success is kept.
    match LOGGER.get() {
        Some(logger) => logger.as_ref(),
        None => make().and_then(|logger| LOGGER.get_or_init(|| Some(logger)).as_ref()),
    }
}

/// Open MPI's version, and what an accelerator component needs to make objects.
pub(crate) struct Opal {
    pub(crate) version: &'static str,
    pub(crate) initialize: unsafe extern "C" fn(*mut opal::Class),
    pub(crate) stream: *mut opal::Class,
    pub(crate) event: *mut opal::Class,
}

// SAFETY: a function and static objects of a library that stays loaded.
unsafe impl Send for Opal {}
// SAFETY: as above.
unsafe impl Sync for Opal {}

/// The process's Open MPI; `None` if it has none.
pub(crate) fn opal() -> Option<&'static Opal> {
    static OPAL: OnceLock<Option<Opal>> = OnceLock::new();
    let make = || {
        let library = open(loaded().opal.as_deref()?)?;
        // SAFETY: `opal/runtime/opal.h`, `opal/class/opal_object.h` and
        // `opal/mca/accelerator/accelerator.h` declare them; the version is a terminated string.
        unsafe {
            let version: *const c_char = symbol(library, "opal_version_string").ok()?;
            Some(Opal {
                version: CStr::from_ptr(version).to_str().ok()?,
                initialize: symbol(library, "opal_class_initialize").ok()?,
                stream: symbol(library, "opal_accelerator_stream_t_class").ok()?,
                event: symbol(library, "opal_accelerator_event_t_class").ok()?,
            })
        }
    };
    // Only Open MPI asks, so it is loaded.
    OPAL.get_or_init(make).as_ref()
}

fn loaded() -> Loaded {
    let mut loaded = Loaded::default();
    let into: *mut Loaded = &raw mut loaded;
    // SAFETY: `note` has the callback's signature, and `into` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), into.cast()) };
    loaded
}

/// Notes the path of one loaded object.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _bytes: usize, into: *mut c_void) -> c_int {
    // SAFETY: the dynamic loader passes a valid structure.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: a terminated string of the dynamic loader.
    let name = unsafe { CStr::from_ptr(name) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    // SAFETY: `loaded` passes its own exclusive structure.
    let loaded = unsafe { &mut *into.cast::<Loaded>() };
    let slot = match path.file_name().and_then(OsStr::to_str) {
        Some(file) if is_library(file, "libuct") => &mut loaded.uct,
        Some(file) if is_library(file, "libucs") => &mut loaded.ucs,
        Some(file) if is_library(file, "libucm") => &mut loaded.ucm,
        Some(file) if is_library(file, "libucp") => &mut loaded.ucp,
        Some(file) if is_library(file, "libopen-pal") => &mut loaded.opal,
        _ => return 0,
    };
    slot.get_or_insert_with(|| path.to_owned());
    0
}

/// Whether a file name is a library's, with or without a version: `libuct.so.0`, `libuct.so.0.0.0`.
fn is_library(file: &str, library: &str) -> bool {
    let rest = file
        .strip_prefix(library)
        .and_then(|rest| rest.strip_prefix(".so"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A loaded library, held for the process's life.
fn open(path: &Path) -> Option<&'static Library> {
    // SAFETY: the library is loaded already, so no initializer runs.
    let library = unsafe { Library::open(Some(path), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    library.ok().map(|library| &*Box::leak(Box::new(library)))
}

/// A function or object of a library.
///
/// # Safety
/// `T` is the symbol's type as a pointer.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, Refusal> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| Refusal::Mismatch(format!("{name} is missing")))
}

/// Major and minor number of the loaded UCX.
fn version(loaded: &Loaded) -> Result<(u32, u32), Refusal> {
    let unknown = || Refusal::UnknownRelease("of an unknown version (no libucp.so.0)".to_owned());
    // Only libucp reports the version. A program that uses libuct alone has it beside libuct.
    let ucp = match &loaded.ucp {
        Some(path) => open(path),
        None => {
            let beside = loaded.uct.as_deref().map(|uct| uct.with_file_name("libucp.so.0"));
            // SAFETY: UCX's own library; its initializers are those of every UCP program.
            let library = beside.and_then(|path| unsafe { Library::open(Some(path), libc::RTLD_LAZY) }.ok());
            library.map(|library| &*Box::leak(Box::new(library)))
        }
    };
    let ucp = ucp.ok_or_else(unknown)?;
    type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    // SAFETY: ucp/api/ucp.h declares it so.
    let get: GetVersion = unsafe { symbol(ucp, "ucp_get_version") }?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three valid pointers.
    unsafe { get(&raw mut major, &raw mut minor, &raw mut patch) };
    Ok((major, minor))
}

fn resolve(loaded: &Loaded) -> Result<Ucx, Refusal> {
    let (Some(uct), Some(ucs), Some(ucm)) = (&loaded.uct, &loaded.ucs, &loaded.ucm) else {
        return Err(Refusal::NotLoaded);
    };
    let (Some(uct), Some(ucs), Some(ucm)) = (open(uct), open(ucs), open(ucm)) else {
        return Err(Refusal::NotLoaded);
    };
    let (major, minor) = version(loaded)?;
    let release =
        release::find(major, minor).ok_or_else(|| Refusal::UnknownRelease(format!("{major}.{minor}")))?;
    let function = |library: &Library, name: &str| {
        // SAFETY: only the address is used.
        unsafe { symbol::<*const c_void>(library, name) }.map(Function)
    };
    // SAFETY: the headers of every release of the table declare these symbols with these types.
    let ucx = unsafe {
        Ucx {
            release,
            calloc: symbol(ucs, "ucs_calloc")?,
            component_register: symbol(uct, "uct_component_register")?,
            tl_register: symbol(uct, "uct_tl_register")?,
            components_list: symbol(uct, "uct_components_list")?,
            md_base_query: symbol(uct, "uct_md_base_md_query")?,
            iface_base_query: symbol(uct, "uct_base_iface_query")?,
            iface_init: symbol(uct, "uct_base_iface_t_init")?,
            iface_class: symbol(uct, "uct_base_iface_t_class")?,
            ep_init: symbol(uct, "uct_base_ep_t_init")?,
            ep_class: symbol(uct, "uct_base_ep_t_class")?,
            class_cleanup: symbol(ucs, "ucs_class_call_cleanup_chain")?,
            estimate_perf: function(uct, "uct_base_iface_estimate_perf")?,
            is_connected: function(uct, "uct_base_ep_is_connected")?,
            rkey_compare: function(uct, "uct_base_rkey_compare")?,
            query_v2: function(uct, "uct_iface_base_query_v2").ok(),
            find_system_device: symbol(ucs, "ucs_topo_find_device_by_bus_id")?,
            name_system_device: symbol(ucs, "ucs_topo_sys_device_set_name")?,
            event_enter: symbol(ucm, "ucm_event_enter")?,
            event_leave: symbol(ucm, "ucm_event_leave")?,
            event_dispatch: symbol(ucm, "ucm_event_dispatch")?,
            event_installers: symbol(ucm, "ucm_event_installer_list")?,
            md_config_table: symbol(uct, "uct_md_config_table")?,
            iface_config_table: symbol(uct, "uct_iface_config_table")?,
            parsers: Parsers {
                read_table: function(ucs, "ucs_config_sscanf_table")?,
                clone_table: function(ucs, "ucs_config_clone_table")?,
                release_table: function(ucs, "ucs_config_release_table")?,
                help_table: function(ucs, "ucs_config_help_table")?,
                read_bandwidth: function(ucs, "ucs_config_sscanf_bw")?,
                write_bandwidth: function(ucs, "ucs_config_sprintf_bw")?,
                read_time: function(ucs, "ucs_config_sscanf_time")?,
                write_time: function(ucs, "ucs_config_sprintf_time")?,
                clone_double: function(ucs, "ucs_config_clone_double")?,
                read_bool: function(ucs, "ucs_config_sscanf_bool")?,
                write_bool: function(ucs, "ucs_config_sprintf_bool")?,
                clone_int: function(ucs, "ucs_config_clone_int")?,
                release_nop: function(ucs, "ucs_config_release_nop")?,
                help_generic: function(ucs, "ucs_config_help_generic")?,
                doc_nop: function(ucs, "ucs_config_doc_nop")?,
            },
        }
    };
    ucx.check_sizes()?;
    Ok(ucx)
}

impl Ucx {
    /// Compares the sizes that libuct records with those of the tables. A UCX that was built with
    /// statistics has larger structures.
    fn check_sizes(&self) -> Result<(), Refusal> {
        for (name, class, wanted) in [
            ("uct_base_iface_t", self.iface_class, crate::abi::BASE_IFACE),
            ("uct_base_ep_t", self.ep_class, crate::abi::BASE_EP),
        ] {
            // SAFETY: a constant object of libuct.
            let size = unsafe { (*class).size };
            if size != wanted {
                return Err(Refusal::Mismatch(format!(
                    "{name} has {size} bytes, wanted {wanted}: a build with statistics?"
                )));
            }
        }
        if self.query_v2.is_none() && self.release.internal.contains(&crate::abi::Internal::QueryV2) {
            return Err(Refusal::Mismatch("uct_iface_base_query_v2 is missing".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_names_with_and_without_version_match() {
        for file in ["libuct.so", "libuct.so.0", "libuct.so.0.0.0"] {
            assert!(is_library(file, "libuct"), "{file}");
        }
        for file in [
            "libuct_ib.so.0",
            "libuct_gaudi.so.0",
            "libucts.so",
            "libuct.sox",
            "uct.so",
        ] {
            assert!(!is_library(file, "libuct"), "{file}");
        }
    }

    #[test]
    fn process_without_ucx_is_refused() {
        assert!(matches!(resolve(&loaded()), Err(Refusal::NotLoaded)));
    }
}
