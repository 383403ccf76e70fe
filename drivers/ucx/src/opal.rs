//! The structures of Open MPI 5.0's accelerator framework that a component fills in, as
//! `opal/mca/accelerator/accelerator.h`, `opal/mca/mca.h` and `opal/class/opal_object.h` have them.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

use crate::abi::Function;

/// `OPAL_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;
/// `OPAL_ERROR`.
pub(crate) const ERROR: c_int = -1;
/// `OPAL_ERR_OUT_OF_RESOURCE`.
pub(crate) const OUT_OF_RESOURCE: c_int = -2;
/// `OPAL_ERR_BAD_PARAM`.
pub(crate) const BAD_PARAM: c_int = -5;
/// `OPAL_ERR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: c_int = -8;
/// `MCA_ACCELERATOR_NO_DEVICE_ID`.
pub(crate) const NO_DEVICE: c_int = -1;

/// Major, minor and release.
pub(crate) type Version = [c_int; 3];

/// `mca_base_component_t`.
#[repr(C)]
pub(crate) struct ComponentBase {
    pub(crate) mca: Version,
    pub(crate) project: [u8; 16],
    pub(crate) project_version: Version,
    pub(crate) kind: [u8; 32],
    pub(crate) kind_version: Version,
    pub(crate) name: [u8; 64],
    pub(crate) version: Version,
    pub(crate) open: Function,
    pub(crate) close: Function,
    pub(crate) query: Function,
    pub(crate) register: Function,
    pub(crate) flags: c_int,
    pub(crate) reserved: [u8; 28],
}

/// `opal_accelerator_base_component_t`.
#[repr(C)]
pub(crate) struct Component {
    pub(crate) base: ComponentBase,
    /// `mca_base_component_data_t`: its flags and room.
    pub(crate) data: [c_uint; 9],
    pub(crate) init: unsafe extern "C" fn() -> *const Module,
    pub(crate) finalize: unsafe extern "C" fn(*const Module),
}

impl ComponentBase {
    /// A component without functions of its own.
    pub(crate) const fn named(name: &[u8], version: Version) -> Self {
        Self {
            mca: [2, 1, 0],
            project: text(b"opal"),
            // That of the Open MPI whose headers these are; the framework compares no version of
            // the project.
            project_version: [5, 0, 7],
            kind: text(b"accelerator"),
            kind_version: [1, 0, 0],
            name: text(name),
            version,
            open: Function(null()),
            close: Function(null()),
            query: Function(null()),
            register: Function(null()),
            flags: 0,
            reserved: [0; 28],
        }
    }
}

/// A name in a field with a terminator.
const fn text<const COUNT: usize>(name: &[u8]) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    let mut at = 0;
    while at < name.len() && at + 1 < COUNT {
        bytes[at] = name[at];
        at += 1;
    }
    bytes
}

/// `opal_accelerator_base_module_t`.
#[repr(C)]
pub(crate) struct Module {
    pub(crate) check_addr: unsafe extern "C" fn(*const c_void, *mut c_int, *mut u64) -> c_int,
    pub(crate) create_stream: unsafe extern "C" fn(c_int, *mut *mut Handle) -> c_int,
    pub(crate) create_event: unsafe extern "C" fn(c_int, *mut *mut Handle) -> c_int,
    pub(crate) record_event: unsafe extern "C" fn(c_int, *mut Handle, *mut Handle) -> c_int,
    pub(crate) query_event: unsafe extern "C" fn(c_int, *mut Handle) -> c_int,
    pub(crate) mem_copy_async:
        unsafe extern "C" fn(c_int, c_int, *mut c_void, *const c_void, usize, *mut Handle, c_uint) -> c_int,
    pub(crate) mem_copy:
        unsafe extern "C" fn(c_int, c_int, *mut c_void, *const c_void, usize, c_uint) -> c_int,
    pub(crate) mem_move:
        unsafe extern "C" fn(c_int, c_int, *mut c_void, *const c_void, usize, c_uint) -> c_int,
    pub(crate) mem_alloc: unsafe extern "C" fn(c_int, *mut *mut c_void, usize) -> c_int,
    pub(crate) mem_release: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    pub(crate) get_address_range:
        unsafe extern "C" fn(c_int, *const c_void, *mut *mut c_void, *mut usize) -> c_int,
    pub(crate) host_register: unsafe extern "C" fn(c_int, *mut c_void, usize) -> c_int,
    pub(crate) host_unregister: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    pub(crate) get_device: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(crate) get_device_pci_attr: unsafe extern "C" fn(c_int, *mut PciAttr) -> c_int,
    pub(crate) device_can_access_peer: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    pub(crate) get_buffer_id: unsafe extern "C" fn(c_int, *const c_void, *mut u64) -> c_int,
}

/// `opal_accelerator_pci_attr_t`.
#[repr(C)]
pub(crate) struct PciAttr {
    pub(crate) domain: u16,
    pub(crate) bus: u8,
    pub(crate) device: u8,
    pub(crate) function: u8,
}

/// `opal_accelerator_stream_t` and `opal_accelerator_event_t`, which look the same.
#[repr(C)]
pub(crate) struct Handle {
    pub(crate) class: *const Class,
    pub(crate) references: c_int,
    /// The component's own object; this one has none.
    pub(crate) own: *mut c_void,
}

/// `opal_class_t`.
#[repr(C)]
pub(crate) struct Class {
    pub(crate) name: *const c_char,
    pub(crate) parent: *const Self,
    pub(crate) construct: Function,
    pub(crate) destruct: Function,
    pub(crate) initialized: c_int,
    pub(crate) depth: c_int,
    pub(crate) constructors: *const Function,
    pub(crate) destructors: *const Function,
    pub(crate) size: usize,
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// Names a `usr/include`; Debian's package has the headers beside it.
    const HEADERS: &str = "GAUDI_OPENMPI_HEADERS";
    const FOLDER: &str = "lib/x86_64-linux-gnu/openmpi/include";

    macro_rules! offsets {
        ($c:literal $type:ident: $($c_field:literal $field:ident),*) => {
            vec![$(($c, $c_field, offset_of!($type, $field))),*]
        };
    }

    /// A C type and its bytes.
    type Size = (&'static str, usize);
    /// A C type, its field and the field's offset.
    type Offset = (&'static str, &'static str, usize);

    fn rows() -> (Vec<Size>, Vec<Offset>) {
        let sizes = vec![
            ("mca_base_component_t", size_of::<ComponentBase>()),
            ("opal_accelerator_base_component_t", size_of::<Component>()),
            ("opal_accelerator_base_module_t", size_of::<Module>()),
            ("opal_accelerator_pci_attr_t", size_of::<PciAttr>()),
            ("opal_accelerator_stream_t", size_of::<Handle>()),
            ("opal_accelerator_event_t", size_of::<Handle>()),
            ("opal_class_t", size_of::<Class>()),
        ];
        let fields = [
            offsets!("mca_base_component_t" ComponentBase: "mca_project_name" project,
                "mca_type_name" kind, "mca_component_name" name, "mca_open_component" open,
                "mca_component_flags" flags, "reserved" reserved),
            offsets!("opal_accelerator_base_component_t" Component: "base_data" data,
                "accelerator_init" init, "accelerator_finalize" finalize),
            offsets!("opal_accelerator_base_module_t" Module: "check_addr" check_addr,
                "create_stream" create_stream, "create_event" create_event, "record_event" record_event,
                "query_event" query_event, "mem_copy_async" mem_copy_async, "mem_copy" mem_copy,
                "mem_move" mem_move, "mem_alloc" mem_alloc, "mem_release" mem_release,
                "get_address_range" get_address_range, "host_register" host_register,
                "host_unregister" host_unregister, "get_device" get_device,
                "get_device_pci_attr" get_device_pci_attr,
                "device_can_access_peer" device_can_access_peer, "get_buffer_id" get_buffer_id),
            offsets!("opal_accelerator_stream_t" Handle: "super.obj_reference_count" references,
                "stream" own),
            offsets!("opal_class_t" Class: "cls_initialized" initialized,
                "cls_construct_array" constructors, "cls_sizeof" size),
        ];
        (sizes, fields.concat())
    }

    #[test]
    fn layouts_match_open_mpis_headers() {
        let Some(include) = std::env::var_os(HEADERS).map(PathBuf::from) else {
            return gaudi_harness::skip("libopenmpi-dev 5.0; cargo xtask test fetches it");
        };
        let folder = include.parent().expect("usr").join(FOLDER);
        let mut c = "#include <stddef.h>\n#include \"opal_config.h\"\n#include \"opal/constants.h\"\n\
                     #include \"opal/mca/accelerator/accelerator.h\"\n"
            .to_owned();
        let (sizes, fields) = rows();
        for (name, size) in sizes {
            writeln!(c, "_Static_assert(sizeof({name}) == {size}, \"{name}\");").expect("a string grows");
        }
        for (name, field, offset) in fields {
            let check = format!("offsetof({name}, {field}) == {offset}");
            writeln!(c, "_Static_assert({check}, \"{name}.{field}\");").expect("a string grows");
        }
        for (name, value) in [
            ("OPAL_SUCCESS", SUCCESS),
            ("OPAL_ERROR", ERROR),
            ("OPAL_ERR_OUT_OF_RESOURCE", OUT_OF_RESOURCE),
            ("OPAL_ERR_BAD_PARAM", BAD_PARAM),
            ("OPAL_ERR_NOT_SUPPORTED", NOT_SUPPORTED),
            ("MCA_ACCELERATOR_NO_DEVICE_ID", NO_DEVICE),
        ] {
            writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").expect("a string grows");
        }
        let name = format!("gaudi-opal-{}.c", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, c).expect("a file");
        let mut command = Command::new("cc");
        command.arg("-fsyntax-only").arg("-I").arg(&folder);
        command.arg("-I").arg(folder.join("openmpi")).arg(&file);
        let output = command.output().expect("a C compiler");
        std::fs::remove_file(&file).expect("the file is there");
        assert!(
            output.status.success(),
            "the headers differ: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
