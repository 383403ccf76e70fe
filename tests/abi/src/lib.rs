//! Compares gaudi-uapi with the kernel's C headers by a compiled check.
//!
//! - **The C compiler is the judge.** Each row of the tables becomes `_Static_assert`s; a C file of them is
//!   compiled against the real header. Nothing is parsed, so nothing can be misread.
//! - **The tables cannot forget a field.** [`layouts`] takes every struct apart without `..`: a new field in
//!   gaudi-uapi does not compile until it has a row. Constants come from the tables inside gaudi-uapi.
//! - **Every row says which header knows it.** Structs that grew are checked against the older header too:
//!   the fields that it has agree in place, and its size is a recorded fact.
//! - **A missing header is a skip that is counted**, never a pass ([`skip`]).

mod headers;
mod layouts;

use gaudi_uapi::errno;
use gaudi_uapi::{Era, Ioctl, Named, Since};

pub use headers::{Found, Header, skip};
pub use layouts::{Field, Layout, layouts};

/// A request number and its macro in C.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The macro's name.
    pub c_name: &'static str,
    /// Our number.
    pub value: u32,
    /// The header that defines the macro.
    pub header: Header,
}

/// Every request number that a header defines.
///
/// `Era::AccelH` is not here: no header at hand has type `'H'` on accel nodes. Its numbers are those of
/// `Era::HlMisc`, and gaudi-uapi's own test compares them with recorded facts.
pub fn requests() -> Vec<Request> {
    use gaudi_uapi::{dmabuf, drm};
    let driver = [
        (Ioctl::Info, "HL_IOCTL_INFO", "DRM_IOCTL_HL_INFO"),
        (Ioctl::Cb, "HL_IOCTL_CB", "DRM_IOCTL_HL_CB"),
        (Ioctl::Cs, "HL_IOCTL_CS", "DRM_IOCTL_HL_CS"),
        (Ioctl::WaitCs, "HL_IOCTL_WAIT_CS", "DRM_IOCTL_HL_WAIT_CS"),
        (Ioctl::Memory, "HL_IOCTL_MEMORY", "DRM_IOCTL_HL_MEMORY"),
        (Ioctl::Debug, "HL_IOCTL_DEBUG", "DRM_IOCTL_HL_DEBUG"),
    ];
    let eras = [
        (Era::HlMisc, Header::Misc),
        (Era::AccelDrm, Header::Accel6),
        (Era::AccelDrm, Header::Accel7),
    ];
    let of_driver = driver.into_iter().flat_map(|(ioctl, misc, accel)| {
        eras.into_iter().filter_map(move |(era, header)| {
            let c_name = if header == Header::Misc { misc } else { accel };
            Some(Request {
                c_name,
                value: era.request(ioctl)?,
                header,
            })
        })
    });
    let others = [
        ("DMA_BUF_IOCTL_SYNC", dmabuf::DMA_BUF_IOCTL_SYNC),
        ("DMA_BUF_SET_NAME_B", dmabuf::DMA_BUF_SET_NAME_B),
        (
            "DMA_BUF_IOCTL_EXPORT_SYNC_FILE",
            dmabuf::DMA_BUF_IOCTL_EXPORT_SYNC_FILE,
        ),
        (
            "DMA_BUF_IOCTL_IMPORT_SYNC_FILE",
            dmabuf::DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
        ),
        ("UDMABUF_CREATE", dmabuf::UDMABUF_CREATE),
        ("UDMABUF_CREATE_LIST", dmabuf::UDMABUF_CREATE_LIST),
        ("DMA_HEAP_IOCTL_ALLOC", dmabuf::DMA_HEAP_IOCTL_ALLOC),
        ("SYNC_IOC_MERGE", dmabuf::SYNC_IOC_MERGE),
        ("SYNC_IOC_FILE_INFO", dmabuf::SYNC_IOC_FILE_INFO),
    ];
    let of_others = others.into_iter().map(|(c_name, value)| Request {
        c_name,
        value,
        header: Header::DmaBuf,
    });
    let of_drm = Request {
        c_name: "DRM_IOCTL_VERSION",
        value: drm::DRM_IOCTL_VERSION,
        header: Header::Drm,
    };
    of_driver.chain(of_others).chain([of_drm]).collect()
}

/// Every constant that a header defines, with the header.
///
/// Rows marked `Gaudi3` are left out by [`Header::knows`]: no kernel package ships that header.
pub fn constants() -> Vec<(Header, Named)> {
    use gaudi_uapi::{cb, cs, debug, dmabuf, engine, info, limits, memory, queue, wait};
    let of_driver: [&[Named]; 24] = [
        cb::CbOp::NAMES,
        cb::CbFlags::NAMES,
        cs::CsFlags::NAMES,
        cs::CsChunkFlags::NAMES,
        cs::CsStatus::NAMES,
        cs::EngineCommand::NAMES,
        debug::DebugOp::NAMES,
        engine::Gaudi2EngineId::NAMES,
        info::InfoOp::NAMES,
        info::DeviceStatus::NAMES,
        info::ServerType::NAMES,
        info::ClkThrottle::NAMES,
        info::Gaudi2Pll::NAMES,
        info::NotifierEvents::NAMES,
        info::RazwiFlags::NAMES,
        info::FwErrType::NAMES,
        limits::NAMES,
        memory::MemOp::NAMES,
        memory::MemFlags::NAMES,
        queue::Gaudi2Queue::NAMES,
        wait::WaitCsFlags::NAMES,
        wait::WaitCsFlags::MASKS,
        wait::WaitCsStatus::NAMES,
        wait::WaitCsStatusFlags::NAMES,
    ];
    let of_driver = of_driver
        .into_iter()
        .flatten()
        .flat_map(|&n| [Header::Misc, Header::Accel6, Header::Accel7].map(|header| (header, n)));
    let of_dmabuf = dmabuf::DmaBufSyncFlags::NAMES
        .iter()
        .chain(dmabuf::UdmabufFlags::NAMES)
        .copied();
    let plain = |c_name, value| Named {
        c_name,
        value,
        since: Since::V6_1,
    };
    let more = [
        plain("DMA_BUF_SYNC_RW", dmabuf::DmaBufSyncFlags::RW.0),
        plain("DMA_BUF_SYNC_START", dmabuf::DmaBufSyncFlags::START.0),
        plain("DMA_BUF_NAME_LEN", dmabuf::DMA_BUF_NAME_LEN as u64),
    ];
    let errnos = errno::NAMES
        .iter()
        .map(|&(name, value)| plain(name, value.unsigned_abs().into()));
    let of_dmabuf = of_dmabuf.chain(more).chain(errnos).map(|n| (Header::DmaBuf, n));
    of_driver
        .chain(of_dmabuf)
        .filter(|(header, n)| header.knows(n.since))
        .collect()
}

/// The C file that holds all that is claimed about a header.
pub fn c_file(
    header: Header,
    layouts: &[Layout],
    constants: &[(Header, Named)],
    requests: &[Request],
) -> String {
    let mut c = String::from(header.prologue());
    for layout in layouts {
        layout.assert_in(header, &mut c);
    }
    for (_, n) in constants.iter().filter(|(h, _)| *h == header) {
        push_assert(
            &mut c,
            &format!("(unsigned long long)({}) == {:#x}ull", n.c_name, n.value),
            n.c_name,
        );
    }
    for r in requests.iter().filter(|r| r.header == header) {
        push_assert(&mut c, &format!("{} == {:#x}u", r.c_name, r.value), r.c_name);
    }
    c
}

fn push_assert(c: &mut String, condition: &str, what: &str) {
    c.push_str(&format!("_Static_assert({condition}, \"{what}\");\n"));
}
