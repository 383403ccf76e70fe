//! The kernel's verbs without libibverbs: `/dev/infiniband/uverbsN` by write(2) and by its
//! ioctl(2).
//!
//! - Enough to register memory and to move bytes: context, protection domain, regions, one
//!   completion queue and queue pairs of the reliable kind over soft-RoCE, whose queues are memory
//!   shared with the kernel (rdma/rdma_user_rxe.h).
//! - *Raw on purpose*: a test of what the kernel answers must not depend on what a library in
//!   between refuses first (librxe has no dma-buf operation and answers EOPNOTSUPP by itself).
//! - Layouts are those of rdma/ib_user_verbs.h, ib_user_ioctl_cmds.h and rdma_user_rxe.h; numbers
//!   here are offsets in them.

#![expect(
    unsafe_code,
    reason = "commands of uverbs carry the address of their answer, and ioctl(2) takes a pointer"
)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use gaudi_sys::fd::errno_of;
use gaudi_sys::{Errno, RawMapping, SysResult};

/// `IB_ACCESS_*`: what a region or a queue pair allows.
pub mod access {
    /// The device may write locally: receives and answers to reads.
    pub const LOCAL_WRITE: u32 = 1;
    /// A peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// A peer may read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// A peer may run atomics.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Pages are faulted in on demand: refused for dma-bufs.
    pub const ON_DEMAND: u32 = 1 << 6;
    /// Writes may pass one another; a device may ignore it.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// All that a peer can be allowed, and the local right that it needs.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// `enum ib_wc_status`: how a work request ended.
pub mod status {
    /// It was done.
    pub const SUCCESS: u32 = 0;
    /// A local key does not allow it, or its region is deregistered.
    pub const LOC_PROT_ERR: u32 = 4;
    /// The queue pair failed before it was reached. rxe also reports this where it finds the
    /// request's own memory refused while it makes the packet: its requester notes [`LOC_PROT_ERR`]
    /// and puts the queue pair into the error state, and its completer, which comes next, flushes
    /// what it finds there without a look at the note (rxe_comp.c).
    pub const WR_FLUSH_ERR: u32 = 5;
    /// The peer found the request wrong (a misaligned atomic).
    pub const REM_INV_REQ_ERR: u32 = 9;
    /// The peer's key does not allow it, or its region is deregistered.
    pub const REM_ACCESS_ERR: u32 = 10;
    /// The peer could not do it.
    pub const REM_OP_ERR: u32 = 11;
}

/// Commands of the write interface (`IB_USER_VERBS_CMD_*`).
#[derive(Clone, Copy)]
#[repr(u32)]
enum Command {
    GetContext = 0,
    AllocPd = 3,
    RegMr = 9,
    DeregMr = 13,
    CreateCq = 18,
    CreateQp = 24,
    ModifyQp = 26,
    PostSend = 28,
}

mod raw {
    /// `struct ib_uverbs_ioctl_hdr`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub(super) struct Header {
        pub(super) length: u16,
        pub(super) object: u16,
        pub(super) method: u16,
        pub(super) attributes: u16,
        pub(super) reserved1: u64,
        pub(super) driver: u32,
        pub(super) reserved2: u32,
    }

    /// `struct ib_uverbs_attr`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub(super) struct Attribute {
        pub(super) id: u16,
        pub(super) len: u16,
        pub(super) flags: u16,
        pub(super) reserved: u16,
        pub(super) data: u64,
    }

    /// The longest command of this module.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub(super) struct Call {
        pub(super) header: Header,
        pub(super) attributes: [Attribute; 9],
    }

    nix::ioctl_readwrite!(rdma_verbs, 0x1b, 1, Header);
}

const OBJECT_MR: u16 = 7;
const METHOD_MR_DESTROY: u16 = 1;
const METHOD_REG_DMABUF_MR: u16 = 4;
const MANDATORY: u16 = 1;
const DRIVER_RXE: u32 = 14;

/// An open device with a protection domain.
#[derive(Debug)]
pub struct Context {
    device: File,
    /// Asynchronous events; closing it early would end the context.
    _events: OwnedFd,
    pd: u32,
}

/// What a dma-buf region is asked with: every field as the ioctl takes it, so that wrong ones can
/// be asked too.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufRegion {
    /// Bytes from the beginning of the dma-buf.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The address that work requests will use; its offset in the page must be the region's.
    pub iova: u64,
    /// The dma-buf's descriptor, or any other number.
    pub fd: RawFd,
    /// [`access`] flags.
    pub access: u32,
}

/// A registered region. Dropping it does nothing: [`Context::deregister`] does, or the context's
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    handle: u32,
    /// For this side's work requests.
    pub lkey: u32,
    /// For a peer's.
    pub rkey: u32,
}

impl Context {
    /// Opens the uverbs node of an RDMA device, by the device's name in sysfs.
    ///
    /// # Errors
    /// `ENODEV` if there is no such device; the errno of open(2) or of a command.
    pub fn open(name: &str) -> SysResult<Self> {
        let node = node_of(name).ok_or(Errno::ENODEV)?;
        let path = format!("/dev/infiniband/{node}");
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(errno_of)?;
        let mut answer = [0; 8];
        command(&device, Command::GetContext, &mut [0; 8], Some(&mut answer))?;
        let events = i32::try_from(word(&answer, 0)).map_err(|_| Errno::EBADF)?;
        // SAFETY: a successful GET_CONTEXT returns a new descriptor, owned by no other object.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        let mut answer = [0; 4];
        command(&device, Command::AllocPd, &mut [0; 8], Some(&mut answer))?;
        Ok(Self {
            device,
            _events: events,
            pd: word(&answer, 0),
        })
    }

    /// Registers memory of this process; the region starts at the memory's own address.
    ///
    /// # Errors
    /// The errno of the command.
    pub fn register(&self, memory: &RawMapping, access: u32) -> SysResult<Region> {
        let start = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let mut request = [0; 40];
        put(&mut request, 8, &start.to_ne_bytes());
        put(&mut request, 16, &(memory.len() as u64).to_ne_bytes());
        put(&mut request, 24, &start.to_ne_bytes());
        put(&mut request, 32, &self.pd.to_ne_bytes());
        put(&mut request, 36, &access.to_ne_bytes());
        let mut answer = [0; 12];
        command(&self.device, Command::RegMr, &mut request, Some(&mut answer))?;
        Ok(Region {
            handle: word(&answer, 0),
            lkey: word(&answer, 4),
            rkey: word(&answer, 8),
        })
    }

    /// Registers a dma-buf (`UVERBS_METHOD_REG_DMABUF_MR`).
    ///
    /// # Errors
    /// The errno of the ioctl; `EPROTO` if the returned handle is invalid.
    pub fn register_dmabuf(&self, asked: &DmaBufRegion) -> SysResult<Region> {
        let mut keys = [0_u32; 2];
        let [lkey, rkey] = &mut keys;
        let lkey = (&raw mut *lkey).expose_provenance() as u64;
        let rkey = (&raw mut *rkey).expose_provenance() as u64;
        let attribute = |id: u16, len: u16, data: u64| raw::Attribute {
            id,
            len,
            flags: MANDATORY,
            reserved: 0,
            data,
        };
        let mut call = call(
            METHOD_REG_DMABUF_MR,
            &[
                attribute(0, 0, 0),
                attribute(1, 0, u64::from(self.pd)),
                attribute(2, 8, asked.offset),
                attribute(3, 8, asked.length),
                attribute(4, 8, asked.iova),
                // Raw: the kernel takes four bytes and reads them as a descriptor, and so as a
                // negative one too.
                attribute(5, 4, u64::from(asked.fd as u32)),
                attribute(6, 4, u64::from(asked.access)),
                attribute(7, 4, lkey),
                attribute(8, 4, rkey),
            ],
        );
        // SAFETY: the call holds as many attributes as its header counts, and the addresses in it
        // are of live words that the kernel may write.
        unsafe { raw::rdma_verbs(self.device.as_raw_fd(), (&raw mut call).cast()) }?;
        let handle = u32::try_from(call.attributes[0].data & 0xffff_ffff).map_err(|_| Errno::EPROTO)?;
        let [lkey, rkey] = [&raw const keys[0], &raw const keys[1]].map(|key| {
            // SAFETY: the words live; volatile, since the kernel wrote them behind the compiler's
            // back.
            unsafe { key.read_volatile() }
        });
        Ok(Region { handle, lkey, rkey })
    }

    /// Deregisters a region with the ioctl.
    ///
    /// # Errors
    /// The errno of the ioctl: `ENOENT` if the region is deregistered.
    pub fn deregister(&self, region: Region) -> SysResult<()> {
        let handle = raw::Attribute {
            flags: MANDATORY,
            data: u64::from(region.handle),
            ..raw::Attribute::default()
        };
        let mut call = call(METHOD_MR_DESTROY, &[handle]);
        // SAFETY: the call holds the one attribute that its header counts, and no address.
        unsafe { raw::rdma_verbs(self.device.as_raw_fd(), (&raw mut call).cast()) }.map(drop)
    }

    /// Deregisters a region with the write interface, as old versions of libibverbs do.
    ///
    /// # Errors
    /// The errno of the command.
    pub fn deregister_by_write(&self, region: Region) -> SysResult<()> {
        command(
            &self.device,
            Command::DeregMr,
            &mut region.handle.to_ne_bytes(),
            None,
        )
    }

    /// Creates a completion queue and a reliable queue pair for 16 requests in each direction.
    ///
    /// # Errors
    /// The errno of a command or of mapping a ring.
    pub fn queue_pair(&self) -> SysResult<QueuePair<'_>> {
        const DEPTH: u32 = 16;
        let mut request = [0; 32];
        put(&mut request, 16, &(2 * DEPTH).to_ne_bytes());
        put(&mut request, 24, &(-1_i32).to_ne_bytes());
        let mut answer = [0; 8 + 16];
        command(&self.device, Command::CreateCq, &mut request, Some(&mut answer))?;
        let cq = word(&answer, 0);
        let completions = Ring::map(&self.device, &answer[8..])?;
        let mut request = [0; 56];
        for (at, value) in [
            (16, self.pd),
            (20, cq),
            (24, cq),
            (32, DEPTH),
            (36, DEPTH),
            (40, 1),
            (44, 1),
        ] {
            put(&mut request, at, &value.to_ne_bytes());
        }
        const RELIABLE: u8 = 2;
        put(&mut request, 53, &[RELIABLE]);
        let mut answer = [0; 32 + 32];
        command(&self.device, Command::CreateQp, &mut request, Some(&mut answer))?;
        Ok(QueuePair {
            context: self,
            handle: word(&answer, 0),
            number: word(&answer, 4),
            receives: Ring::map(&self.device, &answer[32..])?,
            sends: Ring::map(&self.device, &answer[48..])?,
            completions,
            sequence: 0,
        })
    }
}

/// The uverbs node whose `ibdev` is the device.
fn node_of(name: &str) -> Option<String> {
    for entry in std::fs::read_dir("/sys/class/infiniband_verbs").ok()? {
        let entry = entry.ok()?;
        let device = std::fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
        if device.trim() == name {
            return Some(entry.file_name().to_string_lossy().into_owned());
        }
    }
    None
}

fn call(method: u16, attributes: &[raw::Attribute]) -> raw::Call {
    let mut call = raw::Call::default();
    call.attributes[..attributes.len()].copy_from_slice(attributes);
    call.header = raw::Header {
        length: (size_of::<raw::Header>() + size_of_val(attributes)) as u16,
        object: OBJECT_MR,
        method,
        attributes: attributes.len() as u16,
        driver: DRIVER_RXE,
        ..raw::Header::default()
    };
    call
}

/// One command of the write interface; `request` begins with room for the address of the answer,
/// where there is one.
fn command(device: &File, command: Command, request: &mut [u8], answer: Option<&mut [u8]>) -> SysResult<()> {
    let mut out = 0;
    if let Some(answer) = &answer {
        // The kernel writes there while the borrow lives.
        let address = answer.as_ptr().expose_provenance() as u64;
        put(request, 0, &address.to_ne_bytes());
        out = answer.len() / 4;
    }
    let words = (8 + request.len()) / 4;
    let mut message = Vec::with_capacity(8 + request.len());
    message.extend((command as u32).to_ne_bytes());
    message.extend((words as u16).to_ne_bytes());
    message.extend((out as u16).to_ne_bytes());
    message.extend_from_slice(request);
    let mut device = device;
    let written = device.write(&message).map_err(errno_of)?;
    // What the kernel wrote is read after this: the compiler saw no one write it.
    std::hint::black_box(answer);
    if written == message.len() {
        Ok(())
    } else {
        Err(Errno::EPROTO)
    }
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(from: &[u8], at: usize) -> u32 {
    let bytes: [u8; 4] = from[at..at + 4].try_into().expect("four bytes");
    u32::from_ne_bytes(bytes)
}

/// A queue that is shared with rxe (`struct rxe_queue_buf`).
#[derive(Debug)]
struct Ring {
    memory: RawMapping,
    /// Bytes of an element, as a power of two.
    log2: u32,
    mask: u32,
}

impl Ring {
    const PRODUCER: usize = 128;
    const CONSUMER: usize = 256;
    const DATA: usize = 384;

    /// `info` is the `struct mminfo` of the answer that made the queue.
    fn map(device: impl AsFd, info: &[u8]) -> SysResult<Self> {
        let offset = u64::from(word(info, 0)) | u64::from(word(info, 4)) << 32;
        let memory = RawMapping::of_fd(device, offset, word(info, 8) as usize)?;
        let load = |at| memory.load_u32(at, Ordering::Acquire);
        let (log2, mask) = (load(0)?, load(4)?);
        Ok(Self { memory, log2, mask })
    }

    fn element(&self, index: u32) -> usize {
        Self::DATA + ((index & self.mask) as usize) * (1 << self.log2)
    }

    /// Appends an element; rxe sees it when the index moves.
    fn push(&self, bytes: &[u8]) -> SysResult<()> {
        let producer = self.memory.load_u32(Self::PRODUCER, Ordering::Acquire)?;
        let consumer = self.memory.load_u32(Self::CONSUMER, Ordering::Acquire)?;
        if (producer.wrapping_add(1) ^ consumer) & self.mask == 0 {
            return Err(Errno::ENOSPC);
        }
        self.memory.write(self.element(producer), bytes)?;
        fence(Ordering::Release);
        let next = producer.wrapping_add(1) & self.mask;
        self.memory.write(Self::PRODUCER, &next.to_ne_bytes())
    }

    /// Takes the oldest element's first bytes.
    fn pop<const N: usize>(&self) -> SysResult<Option<[u8; N]>> {
        let producer = self.memory.load_u32(Self::PRODUCER, Ordering::Acquire)?;
        let consumer = self.memory.load_u32(Self::CONSUMER, Ordering::Acquire)?;
        if (producer ^ consumer) & self.mask == 0 {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.memory.read(self.element(consumer), &mut bytes)?;
        fence(Ordering::Release);
        let next = consumer.wrapping_add(1) & self.mask;
        self.memory.write(Self::CONSUMER, &next.to_ne_bytes())?;
        Ok(Some(bytes))
    }
}

/// Where a queue pair is, for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its global identifier: of RoCE v2, an IPv4 address in IPv6's form.
    pub gid: [u8; 16],
    /// Its number.
    pub qp: u32,
}

/// Memory of this side: an address in a region.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// In the region's own addresses.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// What to do with the peer's memory.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Write there.
    Write {
        /// In the peer's region.
        remote: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Read from there.
    Read {
        /// In the peer's region.
        remote: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Give it to the receive that the peer has posted.
    Send,
    /// Add to eight bytes there; their old value comes back.
    FetchAndAdd {
        /// In the peer's region.
        remote: u64,
        /// The peer's key.
        rkey: u32,
        /// What is added.
        add: u64,
    },
    /// Replace eight bytes there if they are what is expected; their old value comes back.
    CompareAndSwap {
        /// In the peer's region.
        remote: u64,
        /// The peer's key.
        rkey: u32,
        /// What must be there.
        expected: u64,
        /// What then is there.
        new: u64,
    },
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was posted with.
    pub id: u64,
    /// One of [`status`].
    pub status: u32,
    /// Bytes received.
    pub length: u32,
}

/// A reliable queue pair with its completion queue.
#[derive(Debug)]
pub struct QueuePair<'a> {
    context: &'a Context,
    handle: u32,
    number: u32,
    receives: Ring,
    sends: Ring,
    completions: Ring,
    sequence: u32,
}

impl QueuePair<'_> {
    /// Returns the queue pair's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Connects the queue pair to a peer, over the GID of this index.
    ///
    /// # Errors
    /// The errno of `MODIFY_QP`.
    pub fn connect(&self, gid_index: u8, peer: &Address) -> SysResult<()> {
        const STATE: u32 = 1;
        let step = |mask: u32, fill: &dyn Fn(&mut [u8; 112])| {
            let mut request = [0; 112];
            put(&mut request, 64, &self.handle.to_ne_bytes());
            put(&mut request, 68, &(mask | STATE).to_ne_bytes());
            fill(&mut request);
            command(&self.context.device, Command::ModifyQp, &mut request, None)
        };
        // To INIT: access, partition, port.
        step(1 << 3 | 1 << 4 | 1 << 5, &|request| {
            put(request, 88, &access::ALL.to_ne_bytes());
            put(request, 96, &[1]);
            put(request, 104, &[1]);
        })?;
        // Ready to receive: where the peer is, its number, sequence, and how many reads it may have
        // under way.
        step(
            1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20,
            &|request| {
                put(request, 0, &peer.gid);
                put(request, 24, &[gid_index, 1]);
                put(request, 30, &[1, 1]);
                put(request, 76, &1_u32.to_ne_bytes());
                put(request, 84, &peer.qp.to_ne_bytes());
                const MTU_1024: u8 = 3;
                put(request, 96, &[2, 0, MTU_1024]);
                put(request, 102, &[1, 12]);
            },
        )?;
        // Ready to send. Each try waits half a second: a guest may be slow.
        step(1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16, &|request| {
            put(request, 80, &1_u32.to_ne_bytes());
            put(request, 96, &[3]);
            put(request, 101, &[1]);
            put(request, 105, &[17, 7, 7]);
        })
    }

    /// Posts a request and rings the doorbell.
    ///
    /// # Errors
    /// `ENOSPC` if the send queue is full; the errno of `POST_SEND`.
    pub fn post(&mut self, id: u64, local: Local, request: Request) -> SysResult<()> {
        const SIGNALED: u32 = 1 << 1;
        let mut wqe = [0; 224];
        let (opcode, fields): (u32, Vec<u64>) = match request {
            Request::Write { remote, rkey } => (0, vec![remote, u64::from(rkey)]),
            Request::Send => (2, vec![]),
            Request::Read { remote, rkey } => (4, vec![remote, u64::from(rkey)]),
            Request::CompareAndSwap {
                remote,
                rkey,
                expected,
                new,
            } => (5, vec![remote, expected, new, u64::from(rkey)]),
            Request::FetchAndAdd { remote, rkey, add } => (6, vec![remote, add, 0, u64::from(rkey)]),
        };
        put(&mut wqe, 0, &id.to_ne_bytes());
        put(&mut wqe, 12, &opcode.to_ne_bytes());
        put(&mut wqe, 16, &SIGNALED.to_ne_bytes());
        for (index, field) in fields.iter().enumerate() {
            put(&mut wqe, 24 + 8 * index, &field.to_ne_bytes());
        }
        let remote = fields.first().copied().unwrap_or_default();
        put(&mut wqe, 152, &remote.to_ne_bytes());
        put(&mut wqe, 176, &self.sequence.to_ne_bytes());
        put(&mut wqe, 184, &dma(local));
        self.sequence = self.sequence.wrapping_add(1);
        self.sends.push(&wqe)?;
        let mut request = [0; 24];
        put(&mut request, 8, &self.handle.to_ne_bytes());
        const WORK_REQUEST: u32 = 56; // its size; the kernel asks for it though there is none
        put(&mut request, 20, &WORK_REQUEST.to_ne_bytes());
        let mut answer = [0; 4];
        command(
            &self.context.device,
            Command::PostSend,
            &mut request,
            Some(&mut answer),
        )
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOSPC` if the receive queue is full.
    pub fn receive(&mut self, id: u64, local: Local) -> SysResult<()> {
        let mut wqe = [0; 56];
        put(&mut wqe, 0, &id.to_ne_bytes());
        put(&mut wqe, 16, &dma(local));
        self.receives.push(&wqe)
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// `ETIMEDOUT` if none arrives within `limit`.
    pub fn wait(&self, limit: Duration) -> SysResult<Completion> {
        let begin = Instant::now();
        loop {
            if let Some(wc) = self.completions.pop::<48>()? {
                return Ok(Completion {
                    id: u64::from(word(&wc, 0)) | u64::from(word(&wc, 4)) << 32,
                    status: word(&wc, 8),
                    length: word(&wc, 20),
                });
            }
            if begin.elapsed() > limit {
                return Err(Errno::ETIMEDOUT);
            }
            // rxe's work runs on the same two processors.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// `struct rxe_dma_info` with one element.
fn dma(local: Local) -> [u8; 40] {
    let mut info = [0; 40];
    put(&mut info, 0, &local.length.to_ne_bytes());
    put(&mut info, 4, &local.length.to_ne_bytes());
    put(&mut info, 12, &1_u32.to_ne_bytes());
    put(&mut info, 24, &local.address.to_ne_bytes());
    put(&mut info, 32, &local.length.to_ne_bytes());
    put(&mut info, 36, &local.lkey.to_ne_bytes());
    info
}
