//! udmabuf: a dma-buf of a sealed memfd's pages (drivers/dma-buf/udmabuf.c).

use std::os::fd::OwnedFd;
use std::path::Path;

use gaudi_seam::{Errno, Error, ErrorKind, Result};
use gaudi_sys::dmabuf::{UdmabufPart, udmabuf_create, udmabuf_create_list, udmabuf_open};
use gaudi_sys::{Memfd, PAGE};

use super::meminfo::{MEMINFO, check_room};
use crate::buffer::DmaBuf;
use crate::part::{Part, wrong};

const CREATE: &str = "UDMABUF_CREATE";
const LIST: &str = "UDMABUF_CREATE_LIST";
const PARAMETERS: &str = "/sys/module/udmabuf/parameters";

/// The module's limits, as its parameters say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one dma-buf at most (`size_limit_mb`); `None` where the parameter cannot be read.
    /// 64 MiB in Linux 6.12; in 7.3 as good as none.
    pub bytes: Option<u64>,
    /// Parts of one dma-buf at most (`list_limit`).
    pub parts: Option<u64>,
}

impl Limits {
    fn read(folder: &Path) -> Self {
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        Self {
            bytes: number("size_limit_mb").map(|mib| mib.saturating_mul(1 << 20)),
            parts: number("list_limit"),
        }
    }
}

/// `/dev/udmabuf`, open.
#[derive(Debug)]
pub struct Udmabuf {
    device: OwnedFd,
}

impl Udmabuf {
    /// Opens `/dev/udmabuf`.
    ///
    /// # Errors
    /// - `Unsupported`: the kernel has no udmabuf.
    /// - `PermissionDenied`: the user has no permission.
    pub fn open() -> Result<Self> {
        const OPERATION: &str = "open /dev/udmabuf";
        udmabuf_open().map(|device| Self { device }).map_err(|errno| {
            let error = Error::from_errno(OPERATION, errno);
            match errno {
                Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => error
                    .with_kind(ErrorKind::Unsupported)
                    .because("this kernel has no udmabuf, or it is not loaded")
                    .helped_by("sudo modprobe udmabuf"),
                Errno::EACCES | Errno::EPERM => error
                    .because("the user may not open /dev/udmabuf")
                    .helped_by("join the group that owns it (often kvm)"),
                _ => error,
            }
        })
    }

    /// The limits now: root may change them while the module runs.
    pub fn limits(&self) -> Limits {
        Limits::read(Path::new(PARAMETERS))
    }

    /// Exports a part of a file. All its pages are allocated and stay in memory while the dma-buf
    /// lives.
    ///
    /// # Errors
    /// - `InvalidInput`: the part is empty, not made of whole pages, leaves the file or is larger
    ///   than the module's limit.
    /// - `OutOfMemory`: the machine has less free memory.
    #[track_caller]
    pub fn export(&self, memory: &Memfd, offset: u64, len: u64) -> Result<DmaBuf> {
        let part = UdmabufPart {
            memfd: memory,
            offset,
            size: len,
        };
        self.check(CREATE, &[part])?;
        let fd = udmabuf_create(&self.device, memory, offset, len).map_err(|errno| explain(CREATE, errno))?;
        DmaBuf::from_fd(fd)
    }

    /// Exports several parts as one dma-buf, in this order.
    ///
    /// # Errors
    /// - `InvalidInput`: there are no parts or more than the module's limit.
    /// - As for [`export`](Self::export).
    #[track_caller]
    pub fn export_list(&self, parts: &[UdmabufPart<'_>]) -> Result<DmaBuf> {
        self.check(LIST, parts)?;
        let fd = udmabuf_create_list(&self.device, parts).map_err(|errno| explain(LIST, errno))?;
        DmaBuf::from_fd(fd)
    }

    fn check(&self, operation: &'static str, parts: &[UdmabufPart<'_>]) -> Result<()> {
        check(operation, parts, self.limits(), Path::new(MEMINFO))
    }
}

fn check(operation: &'static str, parts: &[UdmabufPart<'_>], limits: Limits, meminfo: &Path) -> Result<()> {
    if parts.is_empty() {
        return Err(wrong(operation, "nothing to export", 0, "at least one part"));
    }
    if let Some(most) = limits.parts.filter(|&most| parts.len() as u64 > most) {
        let wanted = format!("at most {most}");
        return Err(
            wrong(operation, "more parts than list_limit", parts.len(), wanted)
                .helped_by("raise /sys/module/udmabuf/parameters/list_limit, or export in several buffers"),
        );
    }
    let (mut bytes, mut resident) = (0_u64, 0_u64);
    for part in parts {
        Part::pages(operation, part.memfd.len(), part.offset, part.size)?;
        bytes = bytes.saturating_add(part.size);
        // Pages that are there already take no more memory; which ones of the file they are is not
        // known.
        resident = resident.saturating_add(part.memfd.resident().unwrap_or(0).min(part.size));
    }
    if let Some(most) = limits.bytes.filter(|&most| bytes > most) {
        let wanted = format!("at most {most}");
        return Err(wrong(operation, "more bytes than size_limit_mb", bytes, wanted).helped_by(
            "raise /sys/module/udmabuf/parameters/size_limit_mb, export in several buffers, or take a heap",
        ));
    }
    check_room(operation, bytes.saturating_sub(resident), meminfo)
}

/// What the driver's bare errno can still mean once the checks above have passed.
fn explain(operation: &'static str, errno: Errno) -> Error {
    let error = Error::from_errno(operation, errno);
    match errno {
        Errno::EINVAL => error.because("udmabuf refused a request that looks right").helped_by(
            "its limits may just have been lowered; the file must be sealed with F_SEAL_SHRINK, and with neither F_SEAL_WRITE nor F_SEAL_FUTURE_WRITE",
        ),
        _ => error,
    }
}

/// Takes a memfd that another program made, if udmabuf accepts it.
///
/// # Errors
/// `InvalidInput`: a seal is missing or must not be there; the error names it. Or the descriptor is
/// not a memfd, or its size is not a multiple of the page.
pub fn adopt(fd: OwnedFd) -> Result<Memfd> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    const OPERATION: &str = "memfd for udmabuf";
    let wrong = |cause, seen: String, wanted| wrong(OPERATION, cause, seen, wanted);
    let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|errno| {
        wrong(
            "the descriptor is no memfd: pages of another file cannot be held",
            errno.to_string(),
            "a file of memfd_create(2)",
        )
    })?;
    let seals = SealFlag::from_bits_truncate(seals);
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        return Err(wrong(
            "the memfd could shrink under its readers",
            format!("seals {seals:?}"),
            "F_SEAL_SHRINK",
        )
        .helped_by("make it with MFD_ALLOW_SEALING and add F_SEAL_SHRINK (fcntl(2), F_ADD_SEALS)"));
    }
    // udmabuf.c `SEALS_DENIED`; the second one since Linux 6.13.
    if seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
        return Err(wrong(
            "the memfd cannot be written",
            format!("seals {seals:?}"),
            "neither F_SEAL_WRITE nor F_SEAL_FUTURE_WRITE: a dma-buf is written by devices",
        ));
    }
    let len = gaudi_sys::fd::size(&fd).map_err(|errno| Error::from_errno(OPERATION, errno))?;
    if len % PAGE != 0 {
        return Err(wrong(
            "the memfd has a part of a page at its end",
            format!("{len} bytes"),
            "a multiple of 4096",
        ));
    }
    Ok(Memfd::of_sealed(fd, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_refused_with_its_reason() {
        let limits = Limits {
            bytes: Some(64 << 20),
            parts: Some(2),
        };
        let memory = Memfd::sparse(c"rules", 65 << 20).unwrap();
        let part = |offset, size| UdmabufPart {
            memfd: &memory,
            offset,
            size,
        };
        let refused = |parts: &[UdmabufPart<'_>]| {
            let error = check(LIST, parts, limits, Path::new("/none")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        };
        assert!(refused(&[]).contains("nothing"));
        assert!(refused(&[part(0, 0)]).contains("nothing"));
        assert!(refused(&[part(1, PAGE)]).contains("offset is not page aligned"));
        assert!(refused(&[part(0, 1)]).contains("size is not a multiple"));
        assert!(refused(&[part(65 << 20, PAGE)]).contains("leaves the memory"));
        assert!(refused(&[part(u64::MAX - PAGE + 1, PAGE)]).contains("leaves the memory"));
        assert!(refused(&[part(0, (64 << 20) + PAGE)]).contains("size_limit_mb"));
        assert!(refused(&[part(0, 33 << 20), part(0, 32 << 20)]).contains("size_limit_mb"));
        assert!(refused(&[part(0, PAGE); 3]).contains("list_limit"));
        assert!(check(LIST, &[part(0, 32 << 20); 2], limits, Path::new("/none")).is_ok());
    }

    #[test]
    fn adopt_requires_shrink_and_rejects_write_seals() {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let adopt = |seals: SealFlag| {
            let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            let fd = memfd_create(c"foreign", flags).expect("a memfd");
            nix::unistd::ftruncate(&fd, 8192).expect("8 KiB");
            fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
            adopt(fd)
        };
        let shrink = SealFlag::F_SEAL_SHRINK;
        for seals in [shrink, shrink | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL] {
            assert_eq!(adopt(seals).expect("udmabuf accepts it").len(), 8192, "{seals:?}");
        }
        for (seals, named) in [
            (SealFlag::F_SEAL_GROW, "F_SEAL_SHRINK"),
            (shrink | SealFlag::F_SEAL_WRITE, "F_SEAL_WRITE"),
            (shrink | SealFlag::F_SEAL_FUTURE_WRITE, "F_SEAL_FUTURE_WRITE"),
        ] {
            let error = adopt(seals).expect_err(named);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn limits_are_read_and_may_be_missing() {
        let folder = std::env::temp_dir().join(format!("gaudi-udmabuf-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("size_limit_mb"), "2147483647\n").unwrap();
        let limits = Limits::read(&folder);
        assert_eq!(limits.bytes, Some(2_147_483_647 << 20));
        assert_eq!(limits.parts, None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
