//! What a query of memory costs through UCX, beside the library's own.

#![allow(unsafe_code, reason = "functions of libuct")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "an element of a list is one access"
)]

use std::ffi::{c_char, c_uint, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Instant;

use gaudi_copy::{AllocOptions, MemoryDomain};
use libloading::os::unix::Library;

use crate::allocator::{Failure, Memory, Place};

const CALLS: u64 = 200_000;
/// The best of so many turns counts.
const TURNS: usize = 15;
const BYTES: usize = 1 << 20;
/// `UCT_MD_MEM_ATTR_FIELD_MEM_TYPE | SYS_DEV`.
const TYPE_AND_DEVICE: u64 = 1 | 1 << 1;

type Pointer = *mut c_void;
/// `uct_component_attr_t`: the field mask, the name, and what is not asked for.
type ComponentAttr = [u64; 8];
/// `uct_md_mem_attr_v2_t`, the longest form.
type MemAttr = [u64; 8];

type Components = unsafe extern "C" fn(*mut *mut Pointer, *mut c_uint) -> i8;
type Component = unsafe extern "C" fn(Pointer, *mut ComponentAttr) -> i8;
type ReadConfig = unsafe extern "C" fn(Pointer, *const c_char, *const c_char, *mut Pointer) -> i8;
type Open = unsafe extern "C" fn(Pointer, *const c_char, Pointer, *mut Pointer) -> i8;
type Query = unsafe extern "C" fn(Pointer, *const c_void, usize, *mut MemAttr) -> i8;

/// Prints the cost of both, and their ratio.
pub(crate) fn run() -> Result<bool, Failure> {
    let (md, query) = open()?;
    let memory = Memory::new(Place::Device, BYTES)?;
    let base = memory.address().expose_provenance() as u64;
    let spec = "mock:gaudi2?name=library"
        .parse()
        .map_err(|error| format!("{error}"))?;
    let domain = MemoryDomain::new(&spec).map_err(|error| error.to_string())?;
    let own = domain.alloc(BYTES as u64, AllocOptions::default());
    let own = own.map_err(|error| error.to_string())?;
    let (mut ucx, mut library) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TURNS {
        let begin = Instant::now();
        for number in 0..CALLS {
            let mut attr = [0; 8];
            attr[0] = TYPE_AND_DEVICE;
            let address = (base + (number & 0xf_ffff)) as *const c_void;
            // SAFETY: an open domain and a structure of the newest release.
            let status = unsafe { query(md, address, 1, &raw mut attr) };
            if status != 0 {
                return Err(format!("uct_md_mem_query: status {status}"));
            }
            black_box(attr);
        }
        ucx = ucx.min(begin.elapsed().as_nanos() as f64 / CALLS as f64);
        let begin = Instant::now();
        for number in 0..CALLS {
            let info = domain.mem_query(own.address() + (number & 0xf_ffff), 1);
            let info = info.map_err(|error| error.to_string())?;
            black_box((info.kind, info.device));
        }
        library = library.min(begin.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    println!(
        "query: uct_md_mem_query {ucx:.1} ns, mem_query {library:.1} ns, {:.2}",
        ucx / library
    );
    Ok(true)
}

/// The plugin's memory domain, and libuct's function.
fn open() -> Result<(Pointer, Query), Failure> {
    // SAFETY: UCX's own library.
    let uct = unsafe { Library::open(Some("libuct.so.0"), libloading::os::unix::RTLD_NOW) };
    let uct = Box::leak(Box::new(uct.map_err(|error| error.to_string())?));
    let (components, component): (Components, Component) = (
        symbol(uct, "uct_query_components\0")?,
        symbol(uct, "uct_component_query\0")?,
    );
    let read_config: ReadConfig = symbol(uct, "uct_md_config_read\0")?;
    let open: Open = symbol(uct, "uct_md_open\0")?;
    let query: Query = symbol(uct, "uct_md_mem_query\0")?;
    let (mut list, mut count) = (null_mut(), 0);
    // SAFETY: valid pointers; the list stays allocated.
    let status = unsafe { components(&raw mut list, &raw mut count) };
    if status != 0 {
        return Err(format!("uct_query_components: status {status}"));
    }
    for index in 0..count as usize {
        // SAFETY: inside the list.
        let one = unsafe { list.add(index).read() };
        let mut attr: ComponentAttr = [0; 8];
        attr[0] = 1;
        // SAFETY: a structure whose field mask has the name alone.
        let status = unsafe { component(one, &raw mut attr) };
        if status != 0 || attr[1].to_ne_bytes() != *b"gaudi_co" {
            continue;
        }
        let (mut config, mut md) = (null_mut(), null_mut());
        // SAFETY: a component of the list; the configuration is the environment's.
        let read = unsafe { read_config(one, null(), null(), &raw mut config) };
        // SAFETY: as above.
        let opened = unsafe { open(one, c"gaudi_copy".as_ptr(), config, &raw mut md) };
        return match (read, opened) {
            (0, 0) => Ok((md, query)),
            other => Err(format!("uct_md_config_read, uct_md_open: statuses {other:?}")),
        };
    }
    Err("UCX has no component gaudi_copy".to_owned())
}

/// A function of `uct/api/uct.h`, as the type that the header declares.
fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, Failure> {
    // SAFETY: the types above are the header's.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| error.to_string())
}
