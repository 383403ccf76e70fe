//! Export: the driver's rules with their reasons, and what comes back.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use gaudi_dmabuf::export::habanalabs::{DeviceRange, Rule};
use gaudi_dmabuf::{DmaBuf, ErrorKind, Exporter, Exports};
use gaudi_seam::{
    Backend, DeviceId, DeviceVa, Errno, Error, ExportRequest, KernelIo, Node, NodeKind, Result,
};
use gaudi_sys::Memfd;

use crate::{export_fd, is_exported, memory};

/// A driver that does nothing but export, or refuses with a bare errno.
struct Driver {
    node: Node,
    memory: Memfd,
    refuses: Option<Errno>,
    exports: u64,
    /// Whether only whole mappings are exported: bytes of one.
    whole: Option<u64>,
    requests: Mutex<Vec<ExportRequest>>,
}

impl Driver {
    fn new() -> Self {
        let device = DeviceId::new(Backend::Mock, 3);
        let node = Node {
            kind: NodeKind::Compute,
            device,
            era: gaudi_uapi::era::Era::AccelDrm,
            name: "test".into(),
        };
        Self {
            node,
            memory: memory(),
            refuses: None,
            exports: 0,
            whole: None,
            requests: Mutex::default(),
        }
    }
}

impl KernelIo for Driver {
    fn node(&self) -> &Node {
        &self.node
    }

    fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        self.requests.lock().unwrap().push(request);
        if self.whole.is_some_and(|whole| whole != request.size) {
            return Err(Error::unsupported(
                "HL_MEM_OP_EXPORT_DMABUF_FD",
                "whole allocations only",
            ));
        }
        match self.refuses {
            Some(errno) => Err(Error::from_errno("HL_MEM_OP_EXPORT_DMABUF_FD", errno).on(self.node.device)),
            None => Ok(export_fd(
                &self.memory,
                request.offset,
                request.size + self.exports,
            )),
        }
    }
}

/// A part of a mapping.
#[derive(Debug, Clone, Copy)]
struct Export {
    mapping: DeviceVa,
    mapping_len: u64,
    offset: u64,
    len: u64,
}

fn export(driver: &Driver, part: Export) -> Result<DmaBuf> {
    let memory = DeviceRange::new(Rule::Mapping, part.mapping, part.mapping_len)?;
    memory.export(driver, part.offset, part.len)
}

fn exports(rule: Rule, len: u64) -> Exports {
    Exports::new(DeviceRange::new(rule, RIGHT.mapping, len).unwrap())
}

const RIGHT: Export = Export {
    mapping: DeviceVa(0x1001_0018_0000_0000),
    mapping_len: 768 << 20,
    offset: 8192,
    len: 12288,
};

#[test]
fn export_returns_a_buffer_of_its_size() {
    let driver = Driver::new();
    let buffer = export(&driver, RIGHT).unwrap();
    assert_eq!((buffer.size(), buffer.exporter()), (12288, &Exporter::StandIn));
    drop(buffer);
    assert!(!is_exported(&driver.memory));
}

#[test]
fn broken_rules_are_einval_before_the_ioctl() {
    let driver = Driver::new();
    for (wrong, reason) in [
        (
            Export {
                mapping: DeviceVa(0x1001_0018_0000_0010),
                ..RIGHT
            },
            "address is not page aligned",
        ),
        (
            Export {
                offset: 0x800,
                ..RIGHT
            },
            "offset is not page aligned",
        ),
        (Export { len: 0, ..RIGHT }, "nothing to export"),
        (Export { len: 4097, ..RIGHT }, "size is not a multiple"),
        (
            Export {
                offset: 768 << 20,
                ..RIGHT
            },
            "leaves the memory",
        ),
        (
            Export {
                offset: u64::MAX - 4095,
                ..RIGHT
            },
            "leaves the memory",
        ),
    ] {
        let error = export(&driver, wrong).unwrap_err();
        assert_eq!(
            (error.kind(), error.errno()),
            (ErrorKind::InvalidInput, Some(Errno::EINVAL)),
            "{wrong:?}"
        );
        assert!(
            error.to_string().contains(reason) && error.to_string().contains("mock3"),
            "{error}"
        );
    }
    assert!(driver.requests.lock().unwrap().is_empty());
}

#[test]
fn driver_refusal_is_explained_with_its_errno() {
    let mut driver = Driver::new();
    driver.refuses = Some(Errno::EINVAL);
    let error = export(&driver, RIGHT).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    assert!(error.help().unwrap().contains("BAR"), "{error:?}");
    driver.refuses = Some(Errno::EMFILE);
    let error = export(&driver, RIGHT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyFiles);
}

#[test]
fn export_of_another_size_is_refused() {
    let mut driver = Driver::new();
    driver.exports = 4096;
    let error = export(&driver, RIGHT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(!is_exported(&driver.memory), "it is closed again");
}

#[test]
fn exports_name_the_mapping_in_every_era() {
    for era in gaudi_uapi::Era::ALL {
        let mut driver = Driver::new();
        driver.node.era = era;
        let exports = exports(Rule::for_chip(0x1020, 0..0), 64 << 10);
        let window = exports.window(&driver, 5000, 10).unwrap();
        assert_eq!((window.offset(), window.len()), (904, 10));
        let requests = driver.requests.lock().unwrap();
        let [request] = requests[..] else {
            panic!("{requests:?}")
        };
        let named = (request.address, request.offset, request.size);
        assert_eq!(named, (RIGHT.mapping, 4096, 4096), "{era:?}");
    }
}

#[test]
fn window_exports_the_whole_mapping_if_needed() {
    let mut driver = Driver::new();
    driver.whole = Some(64 << 10);
    let exports = exports(Rule::Mapping, 64 << 10);
    let window = exports.window(&driver, 5000, 10).unwrap();
    assert_eq!((window.offset(), window.len()), (5000, 10));
    assert_eq!(window.dmabuf().size(), 64 << 10);
    let requests = driver.requests.lock().unwrap();
    let named: Vec<_> = requests
        .iter()
        .map(|request| (request.address, request.size))
        .collect();
    assert_eq!(named, [(RIGHT.mapping, 4096), (RIGHT.mapping, 64 << 10)]);
    drop((requests, window));
    // A driver that exports nothing answers once more, with its own error.
    driver.whole = Some(1);
    let error = exports.window(&driver, 40_000, 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
