//! Keys: how memory is named to another part of the process, another process, or another node.
//!
//! Every key is little-endian and starts with the same 16 bytes:
//! ```text
//! offset bytes field
//!  0     8     magic     "gcpykey\0"
//!  8     2     version   1
//! 10     1     scope     1 process, 2 host, 3 remote
//! 11     1     type      1 host memory, 2 device memory
//! 12     4     length    bytes of the key: 64, 64, 128
//! ```
//! A process key names memory by its number:
//! ```text
//! 16     8     nonce     random number of the process, never 0
//! 24     8     memory    number of the memory in the process
//! 32     8     address   its first byte
//! 40     8     len       its bytes, at least 1
//! 48     4     pid       of the process
//! 52    12     reserved  0
//! ```
//! A host key travels over a Unix stream socket, after the 64 bytes of [`gaudi_dmabuf::send`] that
//! carry the descriptor. It has the fields of a process key; `len` is that of the window.
//!
//! A remote key names memory to a NIC:
//! ```text
//! 16     8     nonce     as above
//! 24     8     memory    as above
//! 32     8     address   first byte of the region, as the owner's programs see it
//! 40     8     len       bytes of the region, at least 1
//! 48     8     iova      address of its first byte for a NIC
//! 56     4     rkey      of the NIC
//! 60     4     access    1 remote write, 2 remote read, 4 remote atomic; others 0
//! 64    16     gid       of the NIC's port
//! 80     8     node      GUID of the NIC's node
//! 88     4     pid       of the process
//! 92    36     reserved  0
//! ```

use std::os::fd::AsFd;
use std::time::Duration;

use gaudi_device::{Deadline, Error, ErrorKind, Result};
use gaudi_dmabuf::Window;
use gaudi_sys::socket::{try_receive_with_fds, try_send_with_fds};
use gaudi_sys::{Errno, poll};
use nix::poll::{PollFd, PollFlags};

use crate::card::nonce;
use crate::kind::MemoryType;
use crate::memory::Memory;

/// Bytes of a [`ProcessKey`].
pub const PROCESS_KEY_BYTES: usize = 64;
/// Bytes that [`send`] sends: those of the dma-buf and of the key.
pub const HOST_MESSAGE_BYTES: usize = gaudi_dmabuf::MESSAGE_BYTES + PROCESS_KEY_BYTES;
/// Bytes of a [`RemoteKey`].
pub const REMOTE_KEY_BYTES: usize = 128;

const MAGIC: u64 = u64::from_le_bytes(*b"gcpykey\0");
const VERSION: u16 = 1;
const PARSE: &str = "gaudi_copy unpack";
const SEND: &str = "gaudi_copy send";
const RECEIVE: &str = "gaudi_copy receive";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Process = 1,
    Host = 2,
    Remote = 3,
}

/// The fields that all keys have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    kind: MemoryType,
    nonce: u64,
    memory: u64,
    address: u64,
    len: u64,
    pid: u32,
}

/// Writes fields one after another.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (place, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// Reads fields one after another. The length was checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(field);
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn refused(cause: &str) -> Error {
    Error::new(ErrorKind::Protocol, PARSE).because(cause)
}

impl Named {
    fn of(memory: &Memory) -> Self {
        Self {
            kind: memory.kind(),
            nonce: nonce(),
            memory: memory.shared.known.id,
            address: memory.address(),
            len: memory.len(),
            pid: std::process::id(),
        }
    }

    fn write_head(&self, writer: &mut Writer<'_>, scope: Scope, len: usize) {
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&VERSION.to_le_bytes());
        writer.put(&[scope as u8, self.kind.tag()]);
        writer.put(&(len as u32).to_le_bytes());
        for word in [self.nonce, self.memory, self.address, self.len] {
            writer.put(&word.to_le_bytes());
        }
    }

    fn to_bytes(self, scope: Scope) -> [u8; PROCESS_KEY_BYTES] {
        let mut bytes = [0; PROCESS_KEY_BYTES];
        let mut writer = Writer(&mut bytes);
        self.write_head(&mut writer, scope, PROCESS_KEY_BYTES);
        writer.put(&self.pid.to_le_bytes());
        bytes
    }

    /// Reads and checks the head and the four words that follow it.
    fn read_head(reader: &mut Reader<'_>, scope: Scope, len: usize) -> Result<Self> {
        let magic = reader.u64();
        if magic != MAGIC {
            return Err(refused("the bytes are not a key").saw(format!("{magic:#x}"), format!("{MAGIC:#x}")));
        }
        let version = u16::from_le_bytes(reader.take());
        if version != VERSION {
            return Err(refused("the key has another version").saw(version, VERSION));
        }
        let [seen_scope, tag] = reader.take();
        if seen_scope != scope as u8 {
            let wanted = format!("{} ({scope:?})", scope as u8);
            return Err(refused("the key has another scope").saw(seen_scope, wanted));
        }
        let kind = MemoryType::of_tag(tag);
        let kind = kind.ok_or_else(|| refused("unknown type of memory").saw(tag, "1 or 2"))?;
        let length = reader.u32();
        if length as usize != len {
            return Err(refused("the key's length is not that of its version").saw(length, len));
        }
        let [nonce, memory, address, bytes] = [reader.u64(), reader.u64(), reader.u64(), reader.u64()];
        if nonce == 0 || memory == 0 {
            return Err(refused("a number of the owner is 0"));
        }
        check_range("the key's range", address, bytes)?;
        Ok(Self {
            kind,
            nonce,
            memory,
            address,
            len: bytes,
            pid: 0,
        })
    }

    fn parse(bytes: &[u8], scope: Scope) -> Result<Self> {
        check_len(bytes, PROCESS_KEY_BYTES)?;
        let mut reader = Reader(bytes);
        let named = Self::read_head(&mut reader, scope, PROCESS_KEY_BYTES)?;
        let pid = reader.u32();
        check_reserved(reader.0)?;
        Ok(Self { pid, ..named })
    }
}

fn check_len(bytes: &[u8], len: usize) -> Result<()> {
    if bytes.len() == len {
        return Ok(());
    }
    Err(refused("the key has another length").saw(format!("{} bytes", bytes.len()), len))
}

fn check_range(what: &str, address: u64, len: u64) -> Result<()> {
    if len > 0 && address.checked_add(len - 1).is_some() {
        return Ok(());
    }
    let seen = format!("{len} bytes at {address:#x}");
    Err(refused(&format!("{what} is empty or leaves the address space")).saw(seen, "1 byte or more"))
}

fn check_reserved(bytes: &[u8]) -> Result<()> {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(refused("a reserved byte is not 0").showing(format!("{:#x}", bytes[at]))),
    }
}

/// A key that only the process which packed it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessKey(Named);

impl ProcessKey {
    pub(crate) fn of(memory: &Memory) -> Self {
        Self(Named::of(memory))
    }

    /// Returns the bytes.
    pub fn to_bytes(&self) -> [u8; PROCESS_KEY_BYTES] {
        self.0.to_bytes(Scope::Process)
    }

    /// Parses bytes from any source. The memory is not looked up.
    ///
    /// # Errors
    /// `Protocol`: a field is invalid. The error names it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Named::parse(bytes, Scope::Process).map(Self)
    }

    /// Returns the live memory that the key names.
    ///
    /// # Errors
    /// - `AccessDenied`: another process packed the key, also the parent of this fork child.
    /// - `NotFound`: the memory was freed.
    /// - `Protocol`: the fields are not those of the memory.
    pub(crate) fn find(&self) -> Result<Memory> {
        let Self(named) = self;
        let pid = std::process::id();
        if named.nonce != nonce() || named.pid != pid {
            return Err(Error::new(ErrorKind::AccessDenied, PARSE)
                .because("another process packed the key")
                .saw(format!("pid {}", named.pid), format!("pid {pid}"))
                .helped_by("pass the memory over a Unix socket (key::send), or pack a remote key"));
        }
        let memory = Memory::by_id(named.memory).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, PARSE)
                .because("the memory of the key was freed")
                .showing(format!("memory {}", named.memory))
        })?;
        if Named::of(&memory) != *named {
            return Err(refused("the key does not describe its memory")
                .saw(format!("{named:?}"), format!("{memory:?}")));
        }
        Ok(memory)
    }

    /// Returns the first address of the memory.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory has at least one byte")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns the type of the memory.
    pub fn kind(&self) -> MemoryType {
        self.0.kind
    }
}

/// Memory of another process of this machine: a window of its dma-buf.
#[derive(Debug, Clone)]
pub struct HostKey {
    named: Named,
    window: Window,
}

impl HostKey {
    /// Returns the window: to register it with a NIC, or with a memory domain.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the first address of the memory in the process that sent it.
    pub fn address(&self) -> u64 {
        self.named.address
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory has at least one byte")]
    pub fn len(&self) -> u64 {
        self.named.len
    }

    /// Returns the type of the memory.
    pub fn kind(&self) -> MemoryType {
        self.named.kind
    }

    /// Returns the process that claims to have sent it, in its own pid namespace.
    pub fn pid(&self) -> u32 {
        self.named.pid
    }
}

/// Passes memory to the process at the other end of a Unix stream socket: a window of its dma-buf,
/// with its descriptor, and the key. `window` has all bytes of `memory`
/// ([`MemoryDomain::window`](crate::MemoryDomain::window)).
///
/// # Errors
/// - `InvalidInput`: the window has another length than the memory.
/// - `TimedOut`: the socket has no room within `timeout`. A part of the message may have been sent:
///   close the socket.
/// - `Forked`, or the error of sendmsg(2).
pub fn send(socket: impl AsFd, memory: &Memory, window: &Window, timeout: Duration) -> Result<()> {
    memory.shared.card.check_process(SEND)?;
    if window.len() != memory.len() {
        return Err(Error::new(ErrorKind::InvalidInput, SEND)
            .because("the window is not that of the memory")
            .saw(
                format!("{} bytes", window.len()),
                format!("{} bytes", memory.len()),
            ));
    }
    let deadline = Deadline::from(timeout);
    gaudi_dmabuf::send(&socket, window, timeout)?;
    let bytes = Named::of(memory).to_bytes(Scope::Host);
    let mut sent = 0;
    while sent < bytes.len() {
        match try_send_with_fds(&socket, &bytes[sent..], &[]) {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => drop(wait(&socket, PollFlags::POLLOUT, deadline, SEND)?),
            Err(errno) => return Err(Error::from_errno(SEND, errno)),
        }
    }
    Ok(())
}

/// Receives memory that [`send`] passed. Waits at most `timeout` for each of its two parts.
///
/// # Errors
/// - `Disconnected`, `TimedOut`, `TooManyFiles`: as [`gaudi_dmabuf::receive`].
/// - `Protocol`: a part is malformed, or the key does not fit the window.
///
/// After an error the stream may be in the middle of a message: close it.
pub fn receive(socket: impl AsFd, timeout: Duration) -> Result<HostKey> {
    let window = gaudi_dmabuf::receive(&socket, timeout)?;
    let deadline = Deadline::from(timeout);
    let mut bytes = [0; PROCESS_KEY_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        // Out-of-band data is reported as readable, but no plain recvmsg(2) consumes it.
        let ready = wait(&socket, PollFlags::POLLIN | PollFlags::POLLPRI, deadline, RECEIVE)?;
        if ready.contains(PollFlags::POLLPRI) {
            return Err(refused("the peer sent out-of-band data"));
        }
        let (count, fds) = match try_receive_with_fds(&socket, &mut bytes[filled..]) {
            Ok(answer) => answer,
            Err(Errno::EAGAIN) => continue,
            Err(errno) => return Err(Error::from_errno(RECEIVE, errno)),
        };
        if !fds.is_empty() {
            return Err(refused("the key carries a descriptor"));
        }
        if count == 0 {
            return Err(Error::new(ErrorKind::Disconnected, RECEIVE)
                .because("the peer closed the socket")
                .saw(format!("{filled} bytes"), format!("a key of {PROCESS_KEY_BYTES}")));
        }
        filled += count;
    }
    let named = Named::parse(&bytes, Scope::Host)?;
    if named.len != window.len() {
        return Err(refused("the key does not fit its window")
            .saw(format!("{} bytes", named.len), format!("{} bytes", window.len())));
    }
    Ok(HostKey { named, window })
}

/// Waits for one of the events, and returns those that occurred.
fn wait(
    socket: impl AsFd,
    events: PollFlags,
    deadline: Deadline,
    operation: &'static str,
) -> Result<PollFlags> {
    let mut set = [PollFd::new(socket.as_fd(), events)];
    match poll::wait(&mut set, deadline) {
        // Event bits that nix does not know count as the requested ones.
        Ok(true) => Ok(set[0].revents().unwrap_or(events)),
        Ok(false) => Err(Error::timed_out(operation)),
        Err(errno) => Err(Error::from_errno(operation, errno)),
    }
}

/// What a NIC may do with a region from another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAccess {
    /// RDMA write.
    pub write: bool,
    /// RDMA read.
    pub read: bool,
    /// Atomic operations.
    pub atomic: bool,
}

impl RemoteAccess {
    fn bits(self) -> u32 {
        u32::from(self.write) | u32::from(self.read) << 1 | u32::from(self.atomic) << 2
    }

    fn of_bits(bits: u32) -> Option<Self> {
        (bits < 8).then_some(Self {
            write: bits & 1 != 0,
            read: bits & 2 != 0,
            atomic: bits & 4 != 0,
        })
    }
}

/// A region of memory that the caller registered with a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicRegion {
    /// The region's first byte, as programs of this process see it.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Address of its first byte for a NIC.
    pub iova: u64,
    /// The key that a peer's NIC sends.
    pub rkey: u32,
    /// What a peer may do.
    pub access: RemoteAccess,
    /// GID of the NIC's port.
    pub gid: [u8; 16],
    /// GUID of the NIC's node.
    pub node: u64,
}

/// A key for a NIC of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey {
    kind: MemoryType,
    nonce: u64,
    memory: u64,
    pid: u32,
    region: NicRegion,
}

impl RemoteKey {
    /// Packs a region of memory.
    ///
    /// # Errors
    /// - `InvalidInput`: the region is not inside the memory, or its iova leaves the address space.
    /// - `Forked`.
    pub fn pack(memory: &Memory, region: NicRegion) -> Result<Self> {
        const OP: &str = "gaudi_copy pack";
        memory.shared.card.check_process(OP)?;
        let inside = region
            .address
            .checked_sub(memory.address())
            .is_some_and(|offset| {
                let end = offset.checked_add(region.len);
                region.len > 0 && end.is_some_and(|end| end <= memory.len())
            });
        if !inside || region.iova.checked_add(region.len - 1).is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, OP)
                .because("the region is not inside the memory")
                .saw(
                    format!("{} bytes at {:#x}", region.len, region.address),
                    format!("inside {memory:?}"),
                ));
        }
        let named = Named::of(memory);
        Ok(Self {
            kind: named.kind,
            nonce: named.nonce,
            memory: named.memory,
            pid: named.pid,
            region,
        })
    }

    /// Returns the bytes.
    pub fn to_bytes(&self) -> [u8; REMOTE_KEY_BYTES] {
        let mut bytes = [0; REMOTE_KEY_BYTES];
        let named = Named {
            kind: self.kind,
            nonce: self.nonce,
            memory: self.memory,
            address: self.region.address,
            len: self.region.len,
            pid: self.pid,
        };
        let mut writer = Writer(&mut bytes);
        named.write_head(&mut writer, Scope::Remote, REMOTE_KEY_BYTES);
        writer.put(&self.region.iova.to_le_bytes());
        writer.put(&self.region.rkey.to_le_bytes());
        writer.put(&self.region.access.bits().to_le_bytes());
        writer.put(&self.region.gid);
        writer.put(&self.region.node.to_le_bytes());
        writer.put(&self.pid.to_le_bytes());
        bytes
    }

    /// Parses bytes from any source.
    ///
    /// # Errors
    /// `Protocol`: a field is invalid. The error names it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        check_len(bytes, REMOTE_KEY_BYTES)?;
        let mut reader = Reader(bytes);
        let named = Named::read_head(&mut reader, Scope::Remote, REMOTE_KEY_BYTES)?;
        let (iova, rkey, access) = (reader.u64(), reader.u32(), reader.u32());
        check_range("the NIC's range", iova, named.len)?;
        let known = RemoteAccess::of_bits(access);
        let access = known
            .ok_or_else(|| refused("unknown access right").saw(format!("{access:#x}"), "at most 0x7"))?;
        let (gid, node, pid) = (reader.take(), reader.u64(), reader.u32());
        check_reserved(reader.0)?;
        Ok(Self {
            kind: named.kind,
            nonce: named.nonce,
            memory: named.memory,
            pid,
            region: NicRegion {
                address: named.address,
                len: named.len,
                iova,
                rkey,
                access,
                gid,
                node,
            },
        })
    }

    /// Returns the type of the memory.
    pub fn kind(&self) -> MemoryType {
        self.kind
    }

    /// Returns the region.
    pub fn region(&self) -> &NicRegion {
        &self.region
    }

    /// Returns the address for a NIC of `len` bytes at an address of the owner.
    ///
    /// # Errors
    /// `BadAddress`: the range leaves the region.
    pub fn iova(&self, address: u64, len: u64) -> Result<u64> {
        let region = &self.region;
        let offset = address.checked_sub(region.address);
        offset
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= region.len))
            // The end of a region may be the end of the address space.
            .and_then(|offset| region.iova.checked_add(offset))
            .ok_or_else(|| {
                Error::from_errno("gaudi_copy remote", Errno::EFAULT)
                    .because("the range leaves the region of the key")
                    .saw(
                        format!("{len} bytes at {address:#x}"),
                        format!("within {} bytes at {:#x}", region.len, region.address),
                    )
            })
    }
}
