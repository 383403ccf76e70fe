//! An open device.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_hal::Environment;
use gaudi_seam::{CsRequest, DeviceId, DeviceSpec, Error, ErrorKind, KernelIo, QueueId, Result, SharedIo};

use crate::buffer::Buffer;
use crate::cache::Cache;
use crate::completion::Completion;
use crate::context::{Context, alone, lock};
use crate::deadline::Deadline;
use crate::host::HostMapping;
use crate::info::Info;
use crate::location::Location;
use crate::memory::{Otherwise, Pages};
use crate::queue::{Direction, Queue, still_mapped};
use crate::stats::Stats;
use crate::stripe::Striped;
use crate::sync::Sob;

/// How a device is used. The defaults suit copies of any size.
// guess: none of these figures was measured on a card. One packet of the default length takes 1 to 2 ms on the bus; a submission of
// them stays a hundred times below the driver's timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Bytes in one LIN_DMA packet at most: 256 to the chip's limit (4 GiB - 1); rounded down to whole cache lines.
    pub packet_bytes: u64,
    /// LIN_DMA packets in one submission of [`Device::copy`] at most; the next is built while it runs.
    pub packets_per_submission: u32,
    /// Command buffers of each queue, which is also how many submissions it has in flight at most. The driver allows 64 a process.
    pub command_buffers: u32,
    /// Bytes in each of them: a multiple of 128. All together at most `HL_MAX_CB_SIZE`.
    pub command_buffer_bytes: u32,
    /// How long a call waits for room before `TimedOut`. Longer than the driver's own timeout (30 s), so that a hung engine is `Hung`.
    pub patience: Duration,
    /// Bytes of the host memory through which [`Device::write`] and [`Device::read`] go, four of them at most.
    pub staging_bytes: usize,
    /// Bytes that [`Device::write_from`] and [`Device::read_into`] pin at a time; the next are pinned while the ones before are copied.
    pub pin_bytes: usize,
    /// Bytes for each engine at least, where a copy within the device is spread over several: below twice as many one engine does it.
    pub stripe_bytes: u64,
    /// Host mappings that are kept for the next copy ([`Device::map`]) though nobody holds them, at most; 0 keeps none.
    pub cached_mappings: usize,
    /// Bytes in them at most; 0 keeps none.
    pub cached_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            packet_bytes: 32 << 20,
            packets_per_submission: 8,
            command_buffers: 64,
            command_buffer_bytes: 4096,
            patience: Duration::from_secs(60),
            staging_bytes: 1 << 20,
            pin_bytes: 32 << 20,
            stripe_bytes: 8 << 20,
            cached_mappings: 1024,
            cached_bytes: 1 << 30,
        }
    }
}

impl Options {
    fn checked(mut self, max_dma: u64, line: u64) -> Result<Self> {
        let wrong = |what: &str, seen: u64, wanted: String| {
            Err(Error::new(ErrorKind::InvalidInput, "open")
                .because(format!("the option {what} is wrong"))
                .saw(seen, wanted))
        };
        if self.packet_bytes < 256 || self.packet_bytes > max_dma {
            return wrong("packet_bytes", self.packet_bytes, format!("256 to {max_dma}"));
        }
        self.packet_bytes -= self.packet_bytes % line;
        if self.packets_per_submission == 0 {
            return wrong("packets_per_submission", 0, "at least 1".into());
        }
        let bytes = u64::from(self.command_buffer_bytes);
        if bytes == 0 || bytes % 128 != 0 {
            return wrong("command_buffer_bytes", bytes, "a multiple of 128".into());
        }
        for (name, bytes) in [
            ("staging_bytes", self.staging_bytes as u64),
            ("pin_bytes", self.pin_bytes as u64),
            ("stripe_bytes", self.stripe_bytes),
        ] {
            if bytes == 0 {
                return wrong(name, 0, "at least 1".into());
            }
        }
        Ok(self)
    }
}

/// An open device: memory, copies, queues.
///
/// A handle: a clone is the same open device, `Send` and `Sync`. Buffers, mappings and queues hold what they need of it, so it may be
/// dropped before them; the node closes with the last of all. In a fork child every call answers `Forked` and dropping only closes
/// descriptors.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    to_device: Lazy,
    to_host: Lazy,
    in_device: Mutex<Option<Striped>>,
    pub(crate) staging: Mutex<Vec<HostMapping>>,
    pub(crate) cache: Arc<Cache>,
    context: Arc<Context>,
}

/// A queue of [`Device::copy`], made when it is first needed.
type Lazy = Mutex<Option<Queue>>;

impl Device {
    /// Opens the device of a spec for use: its compute node, which has one user at a time.
    pub fn open(spec: &DeviceSpec) -> Result<Self> {
        Self::with_options(gaudi_hal::open(spec)?, Options::default())
    }

    /// Opens the device that the environment means: `GAUDI_DEVICE`, `GAUDI_MAPPING_TABLE`, or the first free one
    /// ([`gaudi_hal::choose`]).
    pub fn open_default() -> Result<Self> {
        let environment = Environment::of_process();
        let spec = gaudi_hal::choose(None, &environment)?;
        Self::with_options(gaudi_hal::open_in(&spec, &environment)?, Options::default())
    }

    /// Uses an open compute node, with layers around it or without.
    pub fn with_options(io: SharedIo, options: Options) -> Result<Self> {
        let context = Context::new(io, |asic| {
            options.checked(asic.max_dma, u64::from(asic.cache_line))
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                to_device: Mutex::default(),
                to_host: Mutex::default(),
                in_device: Mutex::default(),
                staging: Mutex::default(),
                cache: Arc::new(Cache::new(
                    context.options.cached_mappings,
                    context.options.cached_bytes,
                )),
                context,
            }),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Backend and index.
    pub fn id(&self) -> DeviceId {
        self.context().id
    }

    /// Returns the interface below, for operations that this crate does not wrap.
    ///
    /// Do not unmap through it what this crate mapped. This crate does not track mappings made
    /// through it: after an unmap that reports an error, a retry could unmap such a mapping of host
    /// memory, if the driver gave it the same address.
    pub fn io(&self) -> &dyn KernelIo {
        &*self.context().io
    }

    /// Returns the handles of the fault layers in the device's spec, innermost first.
    pub fn fault_handles(&self) -> Vec<gaudi_hal::layers::fault::FaultHandle> {
        gaudi_hal::fault_handles(&self.context().io)
    }

    /// Returns the device's properties.
    pub fn info(&self) -> Result<Info> {
        self.context().here("HL_IOCTL_INFO")?;
        Info::query(self.io())
    }

    /// What was done since the device was opened.
    pub fn stats(&self) -> Stats {
        self.context().stats.snapshot()
    }

    /// Bytes of the page in which the driver gives device memory.
    pub fn page_bytes(&self) -> u64 {
        self.context().page_bytes
    }

    /// Device memory of `len` bytes, aligned to a cache line (128 bytes): a piece of pages that it shares with other buffers, since
    /// the chip's page is 768 MiB. It shares no cache line. Cannot be exported: see [`alloc_exclusive`](Self::alloc_exclusive).
    pub fn alloc(&self, len: u64) -> Result<Buffer> {
        self.alloc_aligned(len, 1)
    }

    /// As [`alloc`](Self::alloc), at a multiple of `align`: a power of two up to 1 MiB.
    pub fn alloc_aligned(&self, len: u64, align: u64) -> Result<Buffer> {
        let context = self.allocating(len)?;
        if !align.is_power_of_two() || align > 1 << 20 {
            return Err(context
                .wrong("Device::alloc", "no alignment")
                .saw(align, "a power of two up to 1048576"));
        }
        Buffer::piece(context, len, align)
    }

    /// Device memory with whole pages of its own, which can be exported as a dma-buf. It takes at least 768 MiB of the card.
    pub fn alloc_exclusive(&self, len: u64) -> Result<Buffer> {
        Buffer::pages(self.allocating(len)?, len)
    }

    fn allocating(&self, len: u64) -> Result<&Arc<Context>> {
        const OP: &str = "Device::alloc";
        let context = self.context();
        context.here(OP)?;
        if len == 0 {
            return Err(context.wrong(OP, "a buffer needs at least one byte"));
        }
        Ok(context)
    }

    /// Host memory that the device reaches: fresh zeroed pages, pinned and mapped.
    pub fn alloc_host(&self, len: usize) -> Result<HostMapping> {
        self.alloc_host_in(len, Pages::Small, Otherwise::Refuse)
    }

    /// As [`alloc_host`](Self::alloc_host), in pages of a kind; [`HostMapping::pages`] tells which it got.
    pub fn alloc_host_in(&self, len: usize, pages: Pages, otherwise: Otherwise) -> Result<HostMapping> {
        HostMapping::owned(self.context(), len, pages, otherwise)
    }

    /// Pins and maps host memory of somebody else; any alignment.
    ///
    /// # Safety
    /// Until [`HostMapping::close`] has returned `Ok`, or the last handle was dropped, with all locations and the copies that use it,
    /// without a logged error (the driver may refuse to unmap, and the device then still reaches the range, until
    /// [`forget`](Self::forget) of it has returned `Ok`, or the device is closed):
    /// - `len` bytes from `start` stay mapped in this process, readable and writable;
    /// - no reference to them is made or used: the device, and copies through the handle, write there at any time.
    #[expect(unsafe_code, reason = "only the caller knows how long foreign memory lives")]
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Result<HostMapping> {
        // SAFETY: the caller makes the very promises.
        unsafe { HostMapping::foreign(self.context(), start, len) }
    }

    /// A producer on a hardware queue: [`gaudi2_queues`](crate::gaudi2_queues) names them. Every queue that the driver opens to users takes
    /// sync packets; PDMA and EDMA queues also copy and fill. Copies of [`copy`](Self::copy) go through PDMA_0_0, PDMA_1_0 and stream 0 of
    /// the EDMAs; a queue that waits holds them up if it is on one of these.
    pub fn queue(&self, id: QueueId) -> Result<Queue> {
        self.context().here("Device::queue")?;
        Queue::new(self.context(), id)
    }

    /// A sync object that nobody uses.
    pub fn sob(&self) -> Result<Sob> {
        Sob::take(self.context())
    }

    /// Copies between host and device memory, or within device memory: any length (none included), any alignment.
    ///
    /// Both ends have the same length and do not overlap; host to host is `Unsupported` ([`HostMapping::copy_on_cpu`] does it). The
    /// call returns when all is submitted; it waits for room, [`Options::patience`] at most, when more than the queue holds is in
    /// flight. The copy holds both ends until it is done, whatever the caller drops. Copies of one direction happen in the order of
    /// their calls; others in any order. Several threads that copy in one direction take turns: [`queue`](Self::queue) gives each its
    /// own.
    ///
    /// A large copy within the device is spread over all internal DMA engines that work ([`Options::stripe_bytes`]); the order stays.
    pub fn copy(&self, dst: impl Into<Location>, src: impl Into<Location>) -> Result<Completion> {
        let (dst, src) = (dst.into(), src.into());
        let context = self.context();
        context.here("copy")?;
        let direction = Direction::of(context, &dst, &src)?;
        if dst.is_empty() {
            return Ok(Completion::done());
        }
        if direction == Direction::InDevice {
            return self.within(|striped| striped.copy(&dst, &src));
        }
        self.on_lane(direction, |queue| {
            queue.copy_all(direction, &dst, &src, |_| Ok(()))
        })
    }

    /// Fills memory with a byte. Returns as [`copy`](Self::copy) does.
    pub fn fill(&self, dst: impl Into<Location>, value: u8) -> Result<Completion> {
        self.memset(dst, u32::from_ne_bytes([value; 4]))
    }

    /// Fills memory with a 32-bit pattern, its lowest byte first, from the range's first byte on; a last part may be shorter. Returns as
    /// [`copy`](Self::copy) does.
    pub fn memset(&self, dst: impl Into<Location>, pattern: u32) -> Result<Completion> {
        let dst = dst.into();
        let context = self.context();
        context.here("memset")?;
        if !Arc::ptr_eq(dst.context(), context) {
            return Err(context.wrong("memset", "the memory is of another open device"));
        }
        still_mapped(context, "memset", &dst)?;
        if dst.is_empty() {
            return Ok(Completion::done());
        }
        if dst.is_host() {
            return self.on_lane(Direction::ToHost, |queue| queue.fill_all(&dst, pattern));
        }
        self.within(|striped| striped.queue()?.fill_all(&dst, pattern))
    }

    /// Works with the engines inside, which are made ready when they are first needed.
    fn within<T>(&self, work: impl FnOnce(&mut Striped) -> Result<T>) -> Result<T> {
        let mut striped = lock(&self.inner.in_device);
        if striped.is_none() {
            *striped = Some(Striped::new(self.context())?);
        }
        match striped.as_mut() {
            Some(striped) => work(striped),
            None => unreachable!("it was just made"),
        }
    }

    fn on_lane<T>(&self, direction: Direction, work: impl FnOnce(&mut Queue) -> Result<T>) -> Result<T> {
        let (inner, context) = (&*self.inner, self.context());
        let (lane, id) = match direction {
            Direction::ToDevice => (&inner.to_device, context.queues.to_device),
            _ => (&inner.to_host, context.queues.to_host),
        };
        let mut lane = lock(lane);
        if lane.is_none() {
            *lane = Some(Queue::new(context, id)?);
        }
        match lane.as_mut() {
            Some(queue) => work(queue),
            None => unreachable!("it was just made"),
        }
    }

    /// Waits until everything that was submitted through this device is done.
    pub fn drain(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let (context, deadline) = (self.context(), deadline.into());
        context.here("Device::drain")?;
        for lane in context.lanes() {
            lane.drain(deadline)?;
        }
        Ok(())
    }

    /// Makes what has reached the card's interface visible to its engines: posted writes of others, as of a NIC that wrote through a
    /// dma-buf. Reads a register behind the interface, in the driver, and blocks until that is done (`HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES` of
    /// `habanalabs_accel.h`); it waits for no submission, and nothing of this crate needs it.
    ///
    /// What a NIC still holds is not covered: hear of its writes first, by the completion of the send that announces them.
    /// `Unsupported` where the chip has no such register, or the driver's interface does not name the flag.
    pub fn flush_pci_hbw_writes(&self) -> Result<()> {
        self.context().here("HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES")?;
        // The answer's sequence number means nothing: no submission was made.
        self.io().submit(&CsRequest::flush_pci_hbw_writes()).map(drop)
    }

    /// Waits for what is in flight and closes the node; or says who still holds the device, and gives it back.
    pub fn close(self) -> Result<(), (Self, Error)> {
        const OP: &str = "Device::close";
        if let Err(error) = self.context().here(OP) {
            return Err((self, error));
        }
        let in_use = |context: &Context, why: String| {
            Error::new(ErrorKind::InUse, OP)
                .on(context.id)
                .because(why)
                .helped_by("drop or close them first")
        };
        let mut inner = match alone(self.inner) {
            Ok(inner) => inner,
            Err((inner, others)) => {
                let why = format!("{others} other handles of the device");
                let error = in_use(&inner.context, inner.context.with_keepers(why));
                return Err((Self { inner }, error));
            }
        };
        let context = Arc::clone(&inner.context);
        context.drain(context.options.patience);
        inner.forget_helpers();
        lock(&context.heap).retry_lingering(&context.io);
        // The waiter may be about to let go of the last completion.
        let until = Instant::now() + Duration::from_millis(50);
        while !context.holders().is_empty() && context.waiter.is_running() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let mut holders = context.holders();
        if holders.is_empty() && Arc::strong_count(&context.io) > 1 {
            holders.push("seam that was handed in".into());
        }
        if !holders.is_empty() {
            let why = context.with_keepers(format!("still held by {}", holders.join(", ")));
            let error = in_use(&context, why);
            return Err((
                Self {
                    inner: Arc::new(inner),
                },
                error,
            ));
        }
        drop(context);
        inner.close_node()
    }
}

/// How long a close waits for calls of other threads that hold the device without a handle of it.
const LAST_CALLS: Duration = Duration::from_secs(1);

impl Inner {
    /// Closes the node. It stays open during a status query or a release of memory in another
    /// thread.
    fn close_node(self) -> Result<(), (Device, Error)> {
        let Self {
            to_device,
            to_host,
            in_device,
            staging,
            cache,
            mut context,
        } = self;
        let until = Instant::now() + LAST_CALLS;
        let calls = Arc::clone(&context.calls);
        // A thread that releases memory may need a lock of a thread that is held back here.
        let held_until = until - LAST_CALLS / 2;
        let mut closing = Some(calls.close(held_until));
        loop {
            context = match alone(context) {
                // The node closes here. No status query can hold the context any more.
                Ok(_context) => return Ok(()),
                Err((shared, _)) => shared,
            };
            let now = Instant::now();
            if now >= until {
                break;
            }
            if now >= held_until {
                closing = None;
            }
            thread::yield_now();
        }
        drop(closing);
        let error = Error::new(ErrorKind::InUse, "Device::close")
            .on(context.id)
            .because("a call of another thread, such as a status query, still uses the device")
            .helped_by("close it again when that call has returned");
        let inner = Arc::new(Self {
            to_device,
            to_host,
            in_device,
            staging,
            cache,
            context,
        });
        Err((Device { inner }, error))
    }

    /// Lets go of what makes itself again when it is needed.
    fn forget_helpers(&mut self) {
        for lane in [&mut self.to_device, &mut self.to_host] {
            *lane.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        }
        *self.in_device.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.cache.clear();
        self.staging
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id())
    }
}
