//! Serves one peer: reads its messages, calls the device and answers.
//!
//! The `vfio_user` crate (0.1.7) is not used: a message that is too short or not UTF-8 panics it,
//! its reads allocate the size in the peer's header, and after an error it reads the rest of the
//! message as the next message.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_seam::device::BARS;
use gaudi_seam::{BarOffset, DeviceIo, Errno, Error, Event, Iova, RawMapping};
use gaudi_sys::socket::{MAX_FDS, receive_with_fds, send_with_fds};
use gaudi_sys::{fd, memfd, poll};

use crate::wire::{self, Access, HEADER, Header, MAX_DATA, Words, command};

/// The number of regions of a PCI device (linux/vfio.h `VFIO_PCI_NUM_REGIONS`), and the index and
/// size of configuration space.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;
const CONFIG_SIZE: u64 = 4096;
/// The number of interrupt kinds (`VFIO_PCI_NUM_IRQS`), and the index of MSI-X.
const KINDS: u32 = 5;
const MSIX: u32 = 2;

/// Flags of DMA_MAP (vfio-user.rst): the device may read the region, and write it.
const MAP_READ: u32 = 1 << 0;
const MAP_WRITE: u32 = 1 << 1;
/// `VFIO_DMA_UNMAP_FLAG_ALL` (linux/vfio.h).
const UNMAP_ALL: u32 = 1 << 1;
/// Regions that a peer may map at a time. Each takes a mapping of this process, and the kernel
/// limits their number: the default of vm.max_map_count is 65 530.
const MAX_MAPS: usize = 8192;
/// Bytes that a peer may map at a time, sparse or not: 16 TiB, an eighth of the address space of
/// this process. Without address space, an allocation of any size would end the process.
const MAX_MAPPED: u64 = 1 << 44;
/// Time in which a peer sends the rest of a message that it started, and takes an answer.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of one call on the socket, after which the message's deadline is checked again.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

const DEVICE_FLAGS: u32 = 1 << 0 | 1 << 1; // it can be reset, and is PCI
const REGION_READ: u32 = 1 << 0;
const REGION_WRITE: u32 = 1 << 1;
const REGION_MMAP: u32 = 1 << 2;
const REGION_CAPS: u32 = 1 << 3;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const SPARSE: u16 = 1;
/// Bytes of `struct vfio_region_info`, and of a sparse capability with one area.
const REGION_INFO: u32 = 32;
const SPARSE_ONE: u32 = 32;
const IRQ_EVENTFD: u32 = 1 << 0;
const IRQ_NORESIZE: u32 = 1 << 3;
const SET_DATA_NONE: u32 = 1 << 0;
const SET_DATA_BOOL: u32 = 1 << 1;
const SET_DATA_EVENTFD: u32 = 1 << 2;
const SET_ACTION_TRIGGER: u32 = 1 << 5;

/// The reason why the connection to a peer ended.
#[derive(Debug)]
pub enum Disconnect {
    /// The peer closed the connection.
    Closed,
    /// The peer violated the protocol; later bytes cannot be parsed.
    Protocol(&'static str),
    /// The peer did not finish a message, or did not read an answer, within 20 s.
    TimedOut,
    /// The socket failed.
    Socket(io::Error),
}

impl From<io::Error> for Disconnect {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Closed
            }
            // SO_RCVTIMEO and SO_SNDTIMEO report EAGAIN (socket(7)).
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Socket(error),
        }
    }
}

impl From<Errno> for Disconnect {
    fn from(errno: Errno) -> Self {
        Self::from(io::Error::from(errno))
    }
}

// An answer's bytes and its descriptor.
type Answer = Result<(Vec<u8>, Option<OwnedFd>), Errno>;

/// A region that the peer mapped.
#[derive(Clone, Copy, Debug)]
struct Region {
    len: u64,
    // Whether the region is mapped for the device. A region without a file, or without both reading
    // and writing, is only recorded.
    mapped: bool,
}

/// A socket with [`CALL_TIMEOUT`], whose reads and writes fail after a deadline even if single
/// bytes arrive.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        let end = Instant::now() + MESSAGE_TIMEOUT;
        Self { stream, end }
    }

    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.end {
            return Ok(());
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A callback for each access of a peer to a BAR: `R` or `W`, the BAR, the offset and the bytes.
pub type Observe<'a> = &'a dyn Fn(char, u8, BarOffset, &[u8]);

/// A peer and the device that it drives.
pub struct Server<'a> {
    device: &'a dyn DeviceIo,
    observe: Observe<'a>,
    stream: UnixStream,
    /// Whether the peer may map BARs that are memory.
    maps_bars: bool,
    // Keyed by their first address.
    regions: BTreeMap<u64, Region>,
    /// Bytes of the regions that this process has mapped.
    mapped: u64,
}

impl<'a> Server<'a> {
    /// Serves `device` to the peer of `stream`.
    pub fn new(device: &'a dyn DeviceIo, stream: UnixStream) -> Self {
        Self {
            device,
            observe: &|_, _, _, _| {},
            stream,
            maps_bars: true,
            regions: BTreeMap::new(),
            mapped: 0,
        }
    }

    /// Reports each access to a BAR to `observe`.
    #[must_use]
    pub fn observed_by(self, observe: Observe<'a>) -> Self {
        Self { observe, ..self }
    }

    /// Whether the peer may map BARs that are memory; it may by default. QEMU posts its writes to
    /// registers only if it can map none, else it waits for the answer to each.
    #[must_use]
    pub fn with_mappings(self, maps_bars: bool) -> Self {
        Self { maps_bars, ..self }
    }

    /// Answers messages until the peer disconnects, then unmaps its memory and resets the device.
    /// Calls `work` between messages while `work` returns true.
    pub fn run(mut self, mut work: impl FnMut() -> bool) -> Disconnect {
        let timeout = Some(CALL_TIMEOUT);
        let bounded = self.stream.set_read_timeout(timeout);
        let bounded = bounded.and_then(|()| self.stream.set_write_timeout(timeout));
        if let Err(error) = bounded {
            return Disconnect::Socket(error);
        }
        let end = loop {
            while work() {
                match poll::readable([self.stream.as_fd()], Duration::ZERO) {
                    Ok([false]) => {}
                    _ => break,
                }
            }
            if let Err(end) = self.one() {
                break end;
            }
        };
        // The mapped memory and the descriptors are the peer's. The next peer gets a card as after
        // power-on.
        let _ = self.device.dma_unmap(Iova(0), u64::MAX);
        for vector in 0..self.device.interrupts() {
            let _ = self.device.set_interrupt(vector, None);
        }
        let _ = self.device.reset();
        end
    }

    fn one(&mut self) -> Result<(), Disconnect> {
        let mut bytes = [0; HEADER];
        let (got, fds) = loop {
            match receive_with_fds(&self.stream, &mut bytes) {
                Ok((0, _)) => return Err(Disconnect::Closed),
                Ok(got) => break got,
                // A peer may be idle between messages without limit, but not within one.
                Err(Errno::EAGAIN) => {}
                Err(Errno::EMSGSIZE) => return Err(Disconnect::Protocol("too many descriptors")),
                Err(errno) => return Err(errno.into()),
            }
        };
        let mut timed = Timed::new(&self.stream);
        if let Some(rest) = bytes.get_mut(got..) {
            timed.read_exact(rest)?;
        }
        let header = Header::read(bytes);
        let len = header
            .body()
            .ok_or(Disconnect::Protocol("a size that no message has"))?;
        if header.is_reply() {
            return Err(Disconnect::Protocol("an answer to nothing"));
        }
        let mut body = Vec::new();
        body.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        body.resize(len, 0);
        timed.read_exact(&mut body)?;
        let answer = self.answer(header.command, &body, fds);
        if !header.wants_reply() {
            return Ok(());
        }
        let mut timed = Timed::new(&self.stream);
        match answer {
            Ok((body, None)) => timed.write_all(&wire::answer(&header, Ok(&body)))?,
            Ok((body, Some(file))) => {
                let message = wire::answer(&header, Ok(&body));
                let sent = send_with_fds(&self.stream, &message, &[file.as_fd()])?;
                timed.write_all(message.get(sent..).unwrap_or_default())?;
            }
            Err(errno) => timed.write_all(&wire::answer(&header, Err(errno)))?,
        }
        Ok(())
    }

    fn answer(&mut self, command: u16, body: &[u8], fds: Vec<OwnedFd>) -> Answer {
        let mut words = Words(body);
        let body = match command {
            command::VERSION => version(words)?,
            command::DMA_MAP => self.dma_map(words, fds)?,
            command::DMA_UNMAP => self.dma_unmap(words)?,
            command::DEVICE_GET_INFO => bytes_of(&[16, DEVICE_FLAGS, REGIONS, KINDS]),
            command::DEVICE_GET_REGION_INFO => return self.region_info(words),
            command::DEVICE_GET_IRQ_INFO => {
                let _argsz = words.u32()?;
                let index = index(&mut words)?;
                let (flags, count) = match index {
                    MSIX => (IRQ_EVENTFD | IRQ_NORESIZE, self.device.interrupts().into()),
                    0..KINDS => (0, 0),
                    _ => return Err(Errno::EINVAL),
                };
                bytes_of(&[16, flags, index, count])
            }
            command::DEVICE_SET_IRQS => self.set_irqs(words, fds)?,
            command::REGION_READ => self.read(words)?,
            command::REGION_WRITE => self.write(words)?,
            command::DEVICE_RESET => {
                self.device.reset().map_err(errno)?;
                Vec::new()
            }
            _ => return Err(Errno::ENOTSUP),
        };
        Ok((body, None))
    }

    fn dma_map(&mut self, mut words: Words<'_>, mut fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let (_argsz, flags) = (words.u32()?, words.u32()?);
        let (offset, iova, len) = (words.u64()?, words.u64()?, words.u64()?);
        let last = len.checked_sub(1).and_then(|more| iova.checked_add(more));
        let last = last.ok_or(Errno::EINVAL)?;
        if flags & !(MAP_READ | MAP_WRITE) != 0 || fds.len() > 1 {
            return Err(Errno::EINVAL);
        }
        let before = self.regions.range(..=last).next_back();
        if before.is_some_and(|(&start, region)| start >= iova || iova - start < region.len) {
            return Err(Errno::EEXIST);
        }
        if self.regions.len() >= MAX_MAPS {
            return Err(Errno::ENOSPC);
        }
        // Memory of other devices comes without a file, and the chip cannot reach it. The chip has
        // no read-only pages either, so memory that it must not write (a guest's ROM) is not
        // mapped.
        let file = fds.pop().filter(|_| flags == MAP_READ | MAP_WRITE);
        if let Some(file) = &file {
            let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
            // An access past the end of a file would kill this process with SIGBUS.
            if !memfd::is_lasting(file) || fd::size(file)? < end {
                return Err(Errno::EINVAL);
            }
            let size = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
            let mapped = self.mapped.checked_add(len);
            let mapped = mapped.filter(|&bytes| bytes <= MAX_MAPPED).ok_or(Errno::ENOMEM)?;
            let mapping = RawMapping::of_fd(file, offset, size)?;
            self.device
                .dma_map(Iova(iova), Arc::new(mapping))
                .map_err(errno)?;
            self.mapped = mapped;
        }
        let mapped = file.is_some();
        self.regions.insert(iova, Region { len, mapped });
        Ok(Vec::new())
    }

    // Unmaps whole mappings only. A part that stayed mapped would leave the device access to memory
    // that the peer considers unmapped.
    fn dma_unmap(&mut self, mut words: Words<'_>) -> Result<Vec<u8>, Errno> {
        let (argsz, flags) = (words.u32()?, words.u32()?);
        let (iova, len) = (words.u64()?, words.u64()?);
        match flags {
            0 => {
                let region = self.regions.get(&iova).filter(|region| region.len == len);
                if region.ok_or(Errno::EINVAL)?.mapped {
                    self.device.dma_unmap(Iova(iova), len).map_err(errno)?;
                    self.mapped = self.mapped.saturating_sub(len);
                }
                self.regions.remove(&iova);
            }
            // As in VFIO: UNMAP_ALL has neither address nor size.
            UNMAP_ALL if (iova, len) == (0, 0) => {
                self.device.dma_unmap(Iova(0), u64::MAX).map_err(errno)?;
                self.regions.clear();
                self.mapped = 0;
            }
            UNMAP_ALL => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTSUP),
        }
        let mut answer = bytes_of(&[argsz, flags]);
        answer.extend(iova.to_le_bytes());
        answer.extend(len.to_le_bytes());
        Ok(answer)
    }

    fn region_info(&self, mut words: Words<'_>) -> Answer {
        let room = words.u32()?;
        let index = index(&mut words)?;
        if index >= REGIONS {
            return Err(Errno::EINVAL);
        }
        let size = self.region_size(index).map_err(errno)?;
        let mut flags = if size > 0 { REGION_READ | REGION_WRITE } else { 0 };
        let window = match u8::try_from(index) {
            Ok(bar) if bar < BARS && size > 0 && self.maps_bars => {
                self.device.bar_window(bar).map_err(errno)?
            }
            _ => None,
        };
        // The peer maps an area at its place in the region, counted from one offset in the file.
        let window = window.and_then(|window| {
            let start = window.file_offset.checked_sub(window.at.get())?;
            Some((start, window))
        });
        let (start, area, file) = match window {
            Some((start, window)) => (start, Some((window.at.get(), window.len)), Some(window.file)),
            None => (0, None, None),
        };
        let (mut needed, mut cap_offset) = (REGION_INFO, 0);
        if area.is_some() {
            flags |= REGION_MMAP | REGION_CAPS;
            cap_offset = REGION_INFO;
            needed += SPARSE_ONE;
        }
        let mut answer = bytes_of(&[needed, flags, index, cap_offset]);
        answer.extend(size.to_le_bytes());
        answer.extend(start.to_le_bytes());
        // A peer with a short buffer gets the size that it needs, and asks again.
        let Some((at, len)) = area.filter(|_| room >= needed) else {
            return Ok((answer, None));
        };
        answer.extend(SPARSE.to_le_bytes());
        answer.extend(1u16.to_le_bytes());
        answer.extend(bytes_of(&[0, 1, 0]));
        answer.extend(at.to_le_bytes());
        answer.extend(len.to_le_bytes());
        Ok((answer, file))
    }

    fn region_size(&self, index: u32) -> Result<u64, Error> {
        match u8::try_from(index) {
            Ok(bar) if bar < BARS => self.device.bar_size(bar),
            _ if index == CONFIG_REGION => Ok(CONFIG_SIZE),
            _ => Ok(0),
        }
    }

    fn set_irqs(&self, mut words: Words<'_>, fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let (_argsz, flags) = (words.u32()?, words.u32()?);
        let (index, start, count) = (words.u32()?, words.u32()?, words.u32()?);
        if index >= KINDS {
            return Err(Errno::EINVAL);
        }
        if flags & SET_ACTION_TRIGGER == 0 || flags & SET_DATA_BOOL != 0 {
            return Err(Errno::ENOTSUP);
        }
        if index != MSIX {
            // The device has none of these, so there is nothing to set or clear.
            return if count == 0 {
                Ok(Vec::new())
            } else {
                Err(Errno::EINVAL)
            };
        }
        let vectors = u32::from(self.device.interrupts());
        let end = start.checked_add(count).filter(|&end| end <= vectors);
        let end = end.ok_or(Errno::EINVAL)?;
        let set = |vector: u32, event| {
            let vector = u16::try_from(vector).map_err(|_| Errno::EINVAL)?;
            self.device.set_interrupt(vector, event).map_err(errno)
        };
        if flags & SET_DATA_NONE != 0 {
            // Zero vectors from the first on: disables all.
            let all = if count == 0 { 0..vectors } else { start..end };
            for vector in all {
                set(vector, None)?;
            }
            return Ok(Vec::new());
        }
        if flags & SET_DATA_EVENTFD == 0 {
            return Err(Errno::EINVAL);
        }
        if !fds.is_empty() && fds.len() as u64 != u64::from(count) {
            return Err(Errno::EINVAL);
        }
        let mut fds = fds.into_iter();
        for vector in start..end {
            let event = fds.next().map(Event::of).transpose()?;
            set(vector, event)?;
        }
        Ok(Vec::new())
    }

    fn read(&self, mut words: Words<'_>) -> Result<Vec<u8>, Errno> {
        let access = Access::read(&mut words)?;
        let count = access.count as usize;
        if count > MAX_DATA {
            return Err(Errno::EINVAL);
        }
        self.in_region(&access)?;
        let mut data = vec![0; count];
        match u8::try_from(access.region) {
            Ok(bar) if bar < BARS => {
                let at = BarOffset(access.offset);
                self.device.bar_read(bar, at, &mut data).map_err(errno)?;
                (self.observe)('R', bar, at, &data);
            }
            _ => self.device.config_read(access.offset, &mut data).map_err(errno)?,
        }
        let mut answer = access.bytes();
        answer.extend(data);
        Ok(answer)
    }

    fn write(&self, mut words: Words<'_>) -> Result<Vec<u8>, Errno> {
        let access = Access::read(&mut words)?;
        let data = words.rest();
        if u32::try_from(data.len()) != Ok(access.count) {
            return Err(Errno::EINVAL);
        }
        self.in_region(&access)?;
        match u8::try_from(access.region) {
            Ok(bar) if bar < BARS => {
                let at = BarOffset(access.offset);
                (self.observe)('W', bar, at, data);
                self.device.bar_write(bar, at, data).map_err(errno)?;
            }
            _ => self.device.config_write(access.offset, data).map_err(errno)?,
        }
        Ok(access.bytes())
    }

    fn in_region(&self, access: &Access) -> Result<(), Errno> {
        let size = self.region_size(access.region).map_err(errno)?;
        let end = access.offset.checked_add(u64::from(access.count));
        match end {
            Some(end) if access.region < REGIONS && end <= size => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }
}

fn version(mut words: Words<'_>) -> Result<Vec<u8>, Errno> {
    let major = words.u32()? as u16;
    // Further capabilities of the peer are ignored: this server uses only what every version
    // has.
    if major != 0 {
        return Err(Errno::ENOTSUP);
    }
    let capabilities = serde_json::json!({
        "capabilities": { "max_msg_fds": MAX_FDS, "max_data_xfer_size": MAX_DATA, "max_dma_maps": MAX_MAPS }
    });
    let mut answer = vec![0; 4];
    answer.extend(capabilities.to_string().as_bytes());
    answer.push(0);
    Ok(answer)
}

// The index that follows a structure's size and flags.
fn index(words: &mut Words<'_>) -> Result<u32, Errno> {
    let _flags = words.u32()?;
    words.u32()
}

fn errno(error: Error) -> Errno {
    error.errno().unwrap_or(Errno::EIO)
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
