//! Import into a device: what a refused unmap leaves behind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_dmabuf::ErrorKind;
use gaudi_seam::{
    Backend, DeviceId, DeviceVa, Errno, Error, KernelIo, Node, NodeKind, RegisterDmabuf, Result, SharedIo,
};

use crate::{buffer, is_exported, memory};

/// A driver that imports at one address, and refuses the first unmaps.
struct Importer {
    node: Node,
    base: DeviceVa,
    refuses: AtomicU32,
    unmapped: Mutex<Vec<DeviceVa>>,
}

impl Importer {
    fn new(base: u64, refuses: u32) -> Arc<Self> {
        let device = DeviceId::new(Backend::Mock, 5);
        let node = Node {
            kind: NodeKind::Compute,
            device,
            era: gaudi_uapi::Era::AccelDrm,
            name: "test".into(),
        };
        Arc::new(Self {
            node,
            base: DeviceVa(base),
            refuses: AtomicU32::new(refuses),
            unmapped: Mutex::default(),
        })
    }
}

impl KernelIo for Importer {
    fn node(&self) -> &Node {
        &self.node
    }

    fn register_dmabuf(&self, _: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        Ok(self.base)
    }

    fn mem_unmap(&self, address: DeviceVa) -> Result<()> {
        let refuses = self.refuses.load(Ordering::Relaxed);
        if refuses > 0 {
            self.refuses.store(refuses - 1, Ordering::Relaxed);
            return Err(Error::from_errno("HL_MEM_OP_UNMAP", Errno::EBUSY));
        }
        self.unmapped.lock().unwrap().push(address);
        Ok(())
    }
}

#[test]
fn refused_unmap_keeps_the_import() {
    let memory = memory();
    let driver = Importer::new(0x1_0000, 2);
    let window = buffer(&memory, 4096, 8192).window(100, 50).unwrap();
    let import = window.import(Arc::clone(&driver) as SharedIo).unwrap();
    assert_eq!(import.address(), DeviceVa(0x1_0064));
    assert_eq!(window.dmabuf().attachments(), ["device mock5"]);
    drop(window);
    let (import, error) = import.close().expect_err("the driver refuses").into_parts();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(is_exported(&memory), "the device still has the memory mapped");
    let (import, _) = import.close().expect_err("it refuses again").into_parts();
    assert!(driver.unmapped.lock().unwrap().is_empty());
    // A drop unmaps what no close has.
    drop(import);
    assert_eq!(
        *driver.unmapped.lock().unwrap(),
        [DeviceVa(0x1_0000)],
        "once, at its base"
    );
    assert!(!is_exported(&memory));
}

#[test]
fn import_past_the_address_space_is_unmapped() {
    let memory = memory();
    let driver = Importer::new(u64::MAX - 10, 0);
    let window = buffer(&memory, 4096, 8192).window(100, 50).unwrap();
    let error = window.import(Arc::clone(&driver) as SharedIo).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert_eq!(driver.unmapped.lock().unwrap().len(), 1);
    assert!(window.dmabuf().attachments().is_empty());
}
