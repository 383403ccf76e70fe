//! A vfio-user client for tests: well-formed requests, and raw bytes.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use gaudi_seam::Errno;
use gaudi_sys::socket::{MAX_FDS, receive_with_fds, send_with_fds};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vgaudi::wire::{HEADER, Header, command};

/// Flags of DMA_MAP: the device may read the memory, and write it.
pub(crate) const READ: u32 = 1;
pub(crate) const WRITE: u32 = 2;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

/// Returns the bytes of a request.
pub(crate) fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = 7u16.to_le_bytes().to_vec();
    bytes.extend(command.to_le_bytes());
    for word in [(HEADER + body.len()) as u32, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Sends bytes with any number of descriptors.
pub(crate) fn send_any(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let numbers: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&numbers)];
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &control,
        MsgFlags::empty(),
        None,
    );
    assert_eq!(sent, Ok(bytes.len()));
}

impl Client {
    /// Sends bytes as they are; the server may already have hung up.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let _ = (&self.stream).write_all(bytes);
    }

    /// Waits until the server closes the connection.
    pub(crate) fn is_dropped(&self) {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection is still open: {other:?}"),
        }
    }

    /// Sends a request and returns the body of its answer.
    pub(crate) fn ask(&self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Errno> {
        self.ask_for_fds(command, body, fds).map(|(body, _)| body)
    }

    fn ask_for_fds(
        &self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        assert!(fds.len() <= MAX_FDS, "send_any() sends more");
        let bytes = message(command, body);
        let mut stream = &self.stream;
        if fds.is_empty() {
            stream.write_all(&bytes).expect("sent");
        } else {
            assert_eq!(send_with_fds(stream, &bytes, fds), Ok(bytes.len()));
        }
        let mut head = [0; HEADER];
        let (got, fds) = receive_with_fds(stream, &mut head).expect("an answer");
        stream.read_exact(&mut head[got..]).expect("its header");
        let mut body = vec![0; Header::read(head).body().expect("a size")];
        stream.read_exact(&mut body).expect("its body");
        match i32::from_le_bytes(head[12..].try_into().expect("4 bytes")) {
            0 => Ok((body, fds)),
            errno => Err(Errno::from_raw(errno)),
        }
    }

    pub(crate) fn map(
        &self,
        flags: u32,
        iova: u64,
        len: u64,
        offset: u64,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let mut body = 32u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        for word in [offset, iova, len] {
            body.extend(word.to_le_bytes());
        }
        self.ask(command::DMA_MAP, &body, files).map(drop)
    }

    pub(crate) fn unmap(&self, flags: u32, iova: u64, len: u64) -> Result<(), Errno> {
        let mut body = 24u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        body.extend(iova.to_le_bytes());
        body.extend(len.to_le_bytes());
        self.ask(command::DMA_UNMAP, &body, &[]).map(drop)
    }

    pub(crate) fn read(&self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let answer = self.ask(command::REGION_READ, &access(region, offset, count), &[])?;
        Ok(answer[16..].to_vec())
    }

    pub(crate) fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut body = access(region, offset, data.len() as u32);
        body.extend(data);
        self.ask(command::REGION_WRITE, &body, &[]).map(drop)
    }

    /// Returns the file of a BAR's memory, and the offset of the memory in it.
    pub(crate) fn bar(&self, bar: u32) -> (u64, OwnedFd) {
        let (_, offset, file) = self.region_info(bar);
        (offset, file.expect("a file"))
    }

    /// Returns a region's flags, the offset of its memory in a file, and that file.
    pub(crate) fn region_info(&self, bar: u32) -> (u32, u64, Option<OwnedFd>) {
        let mut body = 4096u32.to_le_bytes().to_vec();
        for word in [0, bar, 0, 0, 0, 0, 0] {
            body.extend(word.to_le_bytes());
        }
        let (info, mut fds) = self
            .ask_for_fds(command::DEVICE_GET_REGION_INFO, &body, &[])
            .expect("a region");
        let flags = u32::from_le_bytes(info[4..8].try_into().expect("4 bytes"));
        let offset = u64::from_le_bytes(info[24..32].try_into().expect("8 bytes"));
        (flags, offset, fds.pop())
    }

    pub(crate) fn irqs(
        &self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let words = [20, flags, index, start, count];
        let body: Vec<_> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        self.ask(command::DEVICE_SET_IRQS, &body, fds).map(drop)
    }
}

fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(region.to_le_bytes());
    body.extend(count.to_le_bytes());
    body
}
