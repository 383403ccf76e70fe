//! What a descriptor is, its windows and its attachments.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gaudi_dmabuf::{Directions, DmaBuf, ErrorKind, Exporter};
use gaudi_seam::Errno;
use gaudi_sys::Memfd;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;

use crate::{buffer, export_fd, is_exported, memory};

#[test]
fn stand_in_prints_its_name() {
    let memory = memory();
    let buffer = buffer(&memory, 8192, 12288);
    assert_eq!((buffer.size(), buffer.exporter()), (12288, &Exporter::StandIn));
    assert!(!buffer.exporter().is_dmabuf());
    let text = format!("{buffer:?} {:?}", buffer.whole().unwrap());
    assert_eq!(text.matches("stand-in inode").count(), 2, "{text}");
    assert_eq!(buffer.identity().start, 8192);
}

#[test]
fn other_files_are_refused_by_name() {
    let plain = memfd_create(c"plain", MFdFlags::MFD_CLOEXEC).unwrap();
    let error = DmaBuf::from_fd(plain).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InvalidInput, Some(Errno::EINVAL))
    );
    assert!(error.to_string().contains("memfd:plain"), "{error}");
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let error = DmaBuf::from_fd(null).unwrap_err();
    assert!(error.to_string().contains("/dev/null"), "{error}");
    let bare = Memfd::sparse(c"gaudi-standin", 4096).unwrap();
    let fd = bare.as_fd().try_clone_to_owned().unwrap();
    assert!(
        DmaBuf::from_fd(fd).is_err(),
        "device memory itself is no export of it"
    );
}

/// A memfd with the stand-in's name and lock, but not made by our export.
fn forged(file_len: i64, seals: SealFlag, start: i64, len: i64) -> OwnedFd {
    let file = memfd_create(
        gaudi_sys::standin::MEMFD_NAME,
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )
    .unwrap();
    nix::unistd::ftruncate(&file, file_len).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    let lock = nix::libc::flock {
        l_type: nix::libc::F_RDLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    file
}

#[test]
fn stand_in_that_can_shrink_is_refused() {
    let error = DmaBuf::from_fd(forged(8192, SealFlag::empty(), 0, 8192)).unwrap_err();
    assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
}

#[test]
fn stand_in_beyond_its_file_is_refused() {
    let error = DmaBuf::from_fd(forged(8192, SealFlag::F_SEAL_SHRINK, 4096, 8192)).unwrap_err();
    assert!(error.to_string().contains("leaves its memfd"), "{error}");
}

#[test]
fn attachments_are_named_and_block_closing() {
    let memory = memory();
    let buffer = buffer(&memory, 4096, 8192);
    let nic = buffer.whole().unwrap().attach("nic0: region 1").unwrap();
    let cpu = buffer
        .window(100, 200)
        .unwrap()
        .attach_cpu("copy engine")
        .unwrap();
    assert_eq!(buffer.attachments(), ["nic0: region 1", "copy engine"]);
    let (buffer, error) = buffer.close().expect_err("two are attached").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(
        error.to_string().contains("nic0: region 1, copy engine")
            && error.to_string().contains("0 more handles"),
        "{error}"
    );
    drop(nic);
    assert_eq!(buffer.attachments(), ["copy engine"]);
    drop(cpu);
    let clone = buffer.clone();
    let (buffer, error) = buffer.close().expect_err("a clone is left").into_parts();
    assert!(error.to_string().contains("1 more handles"), "{error}");
    drop(clone);
    assert!(is_exported(&memory));
    buffer.close().unwrap();
    assert!(!is_exported(&memory), "the export is closed");
}

#[test]
fn an_attachment_alone_keeps_the_export_alive() {
    let memory = memory();
    let window = buffer(&memory, 0, 4096).whole().unwrap();
    let cpu = window.attach_cpu("reader").unwrap();
    drop(window);
    assert!(is_exported(&memory));
    drop(cpu);
    assert!(!is_exported(&memory));
}

#[test]
fn stand_in_cpu_access_begins_and_ends() {
    let memory = memory();
    let cpu = buffer(&memory, 4096, 4096)
        .whole()
        .unwrap()
        .attach_cpu("test")
        .unwrap();
    let access = cpu.begin(Directions::ReadWrite).unwrap();
    cpu.write(0, b"x").unwrap();
    access.end().unwrap();
    assert_eq!(
        cpu.write(4096, b"x"),
        Err(Errno::EFAULT),
        "nothing is reached past the window"
    );
    assert_eq!(cpu.at(4000, 97).unwrap_err(), Errno::EFAULT);
}

#[test]
fn the_descriptor_is_closed_on_exec() {
    let memory = memory();
    let fd = export_fd(&memory, 0, 4096);
    let buffer = DmaBuf::from_fd(fd).unwrap();
    let flags = fcntl(buffer.as_fd(), FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
    assert!(buffer.as_fd().as_raw_fd() > 2);
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    /// A window of a window reaches exactly the bytes that its offsets add up to, however they lie
    /// to pages, and none else.
    #[test]
    fn nested_windows_reach_their_own_bytes(
        start in 0u64..8, outer in 0u64..20_000, inner in 0u64..20_000, len in 1u64..9_000, text in any::<u8>(),
    ) {
        let memory = memory();
        let buffer = buffer(&memory, start * 4096, 16 * 4096);
        let made = buffer
            .window(outer, 40_000)
            .and_then(|window| window.window(inner, len));
        prop_assert_eq!(made.is_ok(), inner + len <= 40_000);
        if let Ok(window) = made {
            prop_assert_eq!((window.offset(), window.len()), (outer + inner, len));
            let cpu = window.attach_cpu("test").unwrap();
            cpu.write(0, &vec![text | 1; len as usize]).unwrap();
            let all = gaudi_sys::RawMapping::of_fd(&memory, 0, crate::MEMORY as usize).unwrap();
            let mut seen = vec![0; crate::MEMORY as usize];
            all.read(0, &mut seen).unwrap();
            let at = (start * 4096 + outer + inner) as usize;
            let touched: Vec<usize> = (0..seen.len()).filter(|index| seen[*index] != 0).collect();
            prop_assert_eq!((touched.first(), touched.len()), (Some(&at), len as usize));
        }
    }

    #[test]
    fn no_window_leaves_its_buffer(offset in any::<u64>(), len in any::<u64>()) {
        let memory = memory();
        let buffer = buffer(&memory, 4096, 8192);
        let inside = len > 0 && offset.checked_add(len).is_some_and(|end| end <= 8192);
        match buffer.window(offset, len) {
            Ok(_) => prop_assert!(inside),
            Err(error) => {
                prop_assert!(!inside);
                prop_assert_eq!(error.errno(), Some(Errno::EINVAL));
            }
        }
    }
}
