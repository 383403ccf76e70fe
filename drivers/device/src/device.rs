//! An open device.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_hal::Environment;
use gaudi_ranges::Stats as CacheStats;
use gaudi_seam::{CloseError, CsRequest, DeviceId, DeviceSpec, KernelIo, QueueId, Result, SharedIo};
use gaudi_sys::Deadline;

use crate::buffer::Buffer;
use crate::cache::{self, Cache};
use crate::completion::Completion;
use crate::context::Context;
use crate::copier::Copier;
use crate::heap::{Placement, PoolStats};
use crate::host_buffer::HostBuffer;
use crate::host_mapping::HostMapping;
use crate::info::Info;
use crate::location::Location;
use crate::options::Options;
use crate::queue::Queue;
use crate::shared::{lock, unwrap_last};
use crate::sob::Sob;
use crate::staging::{self, Staging};
use crate::stats::Stats;
use crate::transfer::Direction;

const CLOSE: &str = "Device::close";

/// An open device: memory, copies, queues.
///
/// A clone is the same open device, `Send` and `Sync`. Buffers, mappings and queues hold what they
/// need of it, so it may be dropped before them; the node closes with the last of all. In a fork
/// child every call fails with `Forked`, and drops only close descriptors.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    copier: Copier,
    staging: Staging,
    /// Created when it is first needed: it has kilobytes of counters.
    cache: OnceLock<Arc<Cache>>,
    context: Arc<Context>,
}

impl Device {
    /// Opens the compute node of a spec's device. The node has one user at a time.
    ///
    /// # Errors
    /// - `Busy`: the node has a user.
    /// - `Unsupported`: no table for the chip.
    /// - Any other error of [`gaudi_hal::open`].
    pub fn open(spec: &DeviceSpec) -> Result<Self> {
        Self::with_options(gaudi_hal::open(spec)?, Options::default())
    }

    /// Opens the device that the environment selects: `GAUDI_DEVICE`, `GAUDI_MAPPING_TABLE`, or the
    /// first free one ([`gaudi_hal::choose`]).
    ///
    /// # Errors
    /// As [`open`](Self::open), or no device was found.
    pub fn open_default() -> Result<Self> {
        let environment = Environment::of_process();
        let spec = gaudi_hal::choose(None, &environment)?;
        Self::with_options(gaudi_hal::open_in(&spec, &environment)?, Options::default())
    }

    /// Uses an open compute node, with or without layers around it.
    ///
    /// # Errors
    /// - `InvalidInput`: an option is invalid.
    /// - `Unsupported`: no table for the chip.
    /// - The driver's own error.
    pub fn with_options(io: SharedIo, options: Options) -> Result<Self> {
        let context = Context::new(io, options)?;
        Ok(Self {
            inner: Arc::new(Inner {
                copier: Copier::default(),
                staging: Staging::default(),
                cache: OnceLock::new(),
                context,
            }),
        })
    }

    fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Returns the backend and index.
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
    #[cfg(feature = "layers")]
    pub fn fault_handles(&self) -> Vec<gaudi_hal::layers::fault::FaultHandle> {
        gaudi_hal::fault_handles(&self.context().io)
    }

    /// Returns the device's properties.
    ///
    /// # Errors
    /// `Forked`, or the driver's own error.
    pub fn info(&self) -> Result<Info> {
        self.context().check_process("HL_IOCTL_INFO")?;
        Info::query(self.io())
    }

    /// Returns the counters since the device was opened.
    pub fn stats(&self) -> Stats {
        self.context().stats.snapshot()
    }

    /// Returns the size of the page in which the driver allocates device memory, in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.context().page_bytes
    }

    /// Allocates device memory, aligned to a cache line (128 bytes), in pages that it shares with
    /// other buffers: the chip's page has 768 MiB. Buffers share no cache line. The memory cannot
    /// be exported: see [`alloc_exclusive`](Self::alloc_exclusive).
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0.
    /// - `OutOfDeviceMemory`.
    /// - `Forked`, or the driver's own error.
    pub fn alloc(&self, len: u64) -> Result<Buffer> {
        self.alloc_aligned(len, 1)
    }

    /// As [`alloc`](Self::alloc), at a multiple of `align`: a power of two up to 1 MiB.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and `InvalidInput` for any other alignment.
    pub fn alloc_aligned(&self, len: u64, align: u64) -> Result<Buffer> {
        let context = self.check_aligned(len, align)?;
        Buffer::piece(context, len, align, false)
    }

    /// Allocates device memory in whole pages of its own, which can be exported as a dma-buf. It
    /// takes at least 768 MiB of the card.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_exclusive(&self, len: u64) -> Result<Buffer> {
        self.alloc_placed(len, Placement::default())
    }

    /// As [`alloc_exclusive`](Self::alloc_exclusive), with a size of the pages and a hint for the
    /// address.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and `InvalidInput` for a page size that the driver does not have.
    pub fn alloc_placed(&self, len: u64, placement: Placement) -> Result<Buffer> {
        Buffer::pages(self.check_alloc(len)?, len, placement)
    }

    /// As [`alloc_aligned`](Self::alloc_aligned), in pages that it shares with other exportable
    /// buffers, and that [`Buffer::window`] exports as one dma-buf. An importer of any of them can
    /// access the pages of all: allocate memory that one importer must not reach otherwise.
    ///
    /// The driver does not refuse to free a buffer while an importer in another process, or a NIC,
    /// holds the dma-buf: deregister its regions first.
    ///
    /// # Errors
    /// As [`alloc_aligned`](Self::alloc_aligned).
    pub fn alloc_exportable(&self, len: u64, align: u64) -> Result<Buffer> {
        Buffer::piece(self.check_aligned(len, align)?, len, align, true)
    }

    /// Frees the pages of the driver that no buffer has ([`Options::kept_allocations`]). Returns
    /// their bytes.
    ///
    /// # Errors
    /// `Forked`.
    pub fn trim(&self) -> Result<u64> {
        let context = self.context();
        context.check_process("Device::trim")?;
        Ok(lock(&context.heap).trim(&context.io))
    }

    /// Returns the counters of the pages that buffers share; zeros in a fork child.
    pub fn pool_stats(&self) -> PoolStats {
        let context = self.context();
        if context.owner.is_foreign() {
            return PoolStats::default();
        }
        lock(&context.heap).stats()
    }

    fn check_aligned(&self, len: u64, align: u64) -> Result<&Arc<Context>> {
        let context = self.check_alloc(len)?;
        if !align.is_power_of_two() || align > 1 << 20 {
            return Err(context
                .invalid("Device::alloc", "invalid alignment")
                .saw(align, "a power of two up to 1048576"));
        }
        Ok(context)
    }

    fn check_alloc(&self, len: u64) -> Result<&Arc<Context>> {
        const OP: &str = "Device::alloc";
        let context = self.context();
        context.check_process(OP)?;
        if len == 0 {
            return Err(context.invalid(OP, "a buffer needs at least one byte"));
        }
        Ok(context)
    }

    /// Allocates host memory, pinned and mapped for this device: zeroed, in pages of 4 KiB. For
    /// other pages, and for memory of several devices, [`map`](Self::map) a [`HostBuffer`].
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0.
    /// - `OutOfMemory`.
    /// - `Forked`, or the driver's own error.
    pub fn alloc_host(&self, len: usize) -> Result<HostMapping> {
        staging::allocate(self.context(), len)
    }

    /// Returns the mapping of a host buffer: of an earlier call, or a new one that is cached.
    ///
    /// # Errors
    /// `Forked`, or the driver's own error.
    pub fn map(&self, buffer: &HostBuffer) -> Result<HostMapping> {
        let (context, cache) = (self.context(), self.inner.cache("Device::map")?);
        cache.map(context, buffer.memory(), buffer.len(), || buffer.add_cache(cache))
    }

    /// Pins and maps memory of the caller, of any alignment, to copy from or to. A mapping of an
    /// earlier call that contains the range is used again.
    ///
    /// # Safety
    /// Until [`deregister`](Self::deregister) of the range has returned `Ok`, or the device is
    /// closed:
    /// - `len` bytes from `start` stay mapped in this process, readable and writable: no `munmap`,
    ///   no `free` that may return the pages to the kernel, no `mremap`, no `mprotect`;
    /// - while a copy that uses them runs, and while bytes are copied through the location, no
    ///   reference to them is made or used.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty or leaves the address space.
    /// - `Forked`, or the driver's own error.
    #[expect(unsafe_code, reason = "only the caller knows how long foreign memory lives")]
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Result<Location> {
        let cache = self.inner.cache("Device::register")?;
        // SAFETY: the caller makes the same promises.
        unsafe { cache.register(self.context(), start, len) }
    }

    /// Pins and maps memory of the caller, as [`register`](Self::register) does, with a mapping of
    /// its own that is not cached. The location holds the only handle of the mapping, so
    /// [`HostMapping::close`] unmaps it.
    ///
    /// # Safety
    /// As [`register`](Self::register), until the mapping is closed or the last handle of it is
    /// dropped and no copy of it is in flight.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[expect(unsafe_code, reason = "only the caller knows how long foreign memory lives")]
    pub unsafe fn pin(&self, start: NonNull<u8>, len: usize) -> Result<Location> {
        // SAFETY: the caller makes the same promises.
        unsafe { cache::pin(self.context(), start, len) }
    }

    /// Unmaps memory that [`register`](Self::register) mapped. Call it before the memory is freed
    /// or reused.
    ///
    /// After an error the device may still access the memory: call it again. The cache does not
    /// return the memory in the meantime.
    ///
    /// # Errors
    /// - `InUse`: locations or copies in flight hold it, or a queue was dropped before its copy of
    ///   the memory ended, and the copy may still run.
    /// - `Forked`, or the driver's own error: it refused to unmap, now or in an earlier attempt. In
    ///   a reset it is `DeviceLost`.
    pub fn deregister(&self, start: NonNull<u8>, len: usize) -> Result<()> {
        let cache = self.inner.cache("Device::deregister")?;
        let answer = cache.deregister(self.context(), start, len);
        answer.map_err(|error| error.on(self.id()))
    }

    /// Returns the counters of the cache of host mappings.
    pub fn cache_stats(&self) -> CacheStats {
        self.inner
            .cache
            .get()
            .map_or_else(CacheStats::default, |cache| cache.stats())
    }

    /// Creates a producer on a hardware queue. The chip's `queue` module of `gaudi_spec` has the
    /// numbers.
    ///
    /// Every queue that the driver opens to users accepts sync packets; PDMA and EDMA queues also
    /// copy and fill. [`copy`](Self::copy) uses stream 0 of the engines: a wait on one of these
    /// queues delays the copies.
    ///
    /// # Errors
    /// - `InvalidInput`: the chip has no queue with this number.
    /// - `Unsupported`: the queue is not for users, or its engine is disabled.
    /// - `Forked`, or the driver's own error.
    pub fn queue(&self, id: QueueId) -> Result<Queue> {
        Queue::new(self.context(), id)
    }

    /// Creates a producer on the queue that [`copy`](Self::copy) uses for a direction.
    ///
    /// # Errors
    /// As [`queue`](Self::queue).
    pub fn copy_queue(&self, direction: Direction) -> Result<Queue> {
        let queues = &self.context().copy_queues;
        self.queue(match direction {
            Direction::ToDevice => queues.to_device,
            Direction::ToHost => queues.to_host,
            Direction::InDevice => queues.in_device[0],
        })
    }

    /// Allocates a sync object.
    ///
    /// # Errors
    /// - `Busy`: every sync object is in use.
    /// - `Forked`.
    pub fn sob(&self) -> Result<Sob> {
        Sob::take(self.context())
    }

    /// Copies between host and device memory, or within device memory: any length, any alignment.
    ///
    /// Both ends have the same length and do not overlap. The call returns when all is submitted.
    /// It waits for room, up to [`Options::timeout`], if the queue is full. The copy holds both
    /// ends until it is done. Copies of one direction execute in the order of their calls, others
    /// in any order. Threads that copy in one direction take turns: [`queue`](Self::queue) gives
    /// each its own.
    ///
    /// A large copy within the device is spread over all enabled internal DMA engines
    /// ([`Options::stripe_bytes`]); the order stays.
    ///
    /// # Errors
    /// - `InvalidInput`: the ends overlap, differ in length, are not mapped, or belong to another
    ///   device.
    /// - `Unsupported`: both ends are host memory ([`HostMapping::copy_on_cpu`] copies between
    ///   them).
    /// - `TimedOut`: no room.
    /// - `Forked`, the failure of an earlier copy, or the driver's own error.
    pub fn copy(&self, dst: impl Into<Location>, src: impl Into<Location>) -> Result<Completion> {
        self.inner.copier.copy(self.context(), &dst.into(), &src.into())
    }

    /// Fills memory with a byte. Returns as [`copy`](Self::copy) does.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn fill(&self, dst: impl Into<Location>, value: u8) -> Result<Completion> {
        self.memset(dst, u32::from_ne_bytes([value; 4]))
    }

    /// Fills memory with a 32-bit pattern, its lowest byte first, from the range's first byte on.
    /// The last repetition may be cut off. Returns as [`copy`](Self::copy) does.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn memset(&self, dst: impl Into<Location>, pattern: u32) -> Result<Completion> {
        self.inner.copier.memset(self.context(), &dst.into(), pattern)
    }

    /// Copies bytes of the program into device memory and waits for the copy. The processor fills
    /// staging memory ([`Stats::cpu_copied_bytes`]) while earlier pieces are copied.
    ///
    /// # Errors
    /// - `InvalidInput`: the range leaves the buffer.
    /// - As [`copy`](Self::copy) and [`Completion::wait`].
    pub fn write(&self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let inner = &*self.inner;
        inner
            .staging
            .write(&inner.context, &inner.copier, to, offset, bytes)
    }

    /// Copies device memory into bytes of the program, as [`write`](Self::write) does.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, from: &Buffer, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let inner = &*self.inner;
        inner
            .staging
            .read(&inner.context, &inner.copier, from, offset, bytes)
    }

    /// Waits until everything that was submitted through this device is done.
    ///
    /// # Errors
    /// - `TimedOut`: the deadline passed.
    /// - `Forked`, or the failure of a submission.
    pub fn drain(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.context().check_process("Device::drain")?;
        self.context().queues.drain(deadline)
    }

    /// Makes posted writes that have reached the card's PCI interface visible to its engines, such
    /// as those of a NIC that wrote through a dma-buf.
    ///
    /// The driver reads a register behind the interface (`HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES` of
    /// `habanalabs_accel.h`), and the call blocks until that is done. It waits for no submission.
    /// Writes that a NIC still holds are not covered: wait for the completion of the send that
    /// announces them first.
    ///
    /// # Errors
    /// - `Unsupported`: the chip has no such register, or the driver's interface has no such flag.
    /// - `Forked`, or the driver's own error.
    pub fn flush_pci_hbw_writes(&self) -> Result<()> {
        self.context().check_process("HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES")?;
        // The answer's sequence number has no meaning: no submission was made.
        self.io().submit(&CsRequest::flush_pci_hbw_writes()).map(drop)
    }

    /// Waits for what is in flight and closes the node, or returns the device with the error.
    ///
    /// # Errors
    /// - `InUse`: objects hold the device. The error names them.
    /// - `Forked`.
    pub fn close(self) -> Result<(), CloseError<Self>> {
        if let Err(error) = self.context().check_process(CLOSE) {
            return Err(CloseError::new(self, error));
        }
        let in_use = |context: &Context, why: String| {
            let why = context.with_export_users(why);
            context.in_use(CLOSE, why).helped_by("drop or close them first")
        };
        let mut inner = match unwrap_last(self.inner) {
            Ok(inner) => inner,
            Err((inner, others)) => {
                let error = in_use(&inner.context, format!("{others} other handles of the device"));
                return Err(CloseError::new(Self { inner }, error));
            }
        };
        inner.context.queues.drain_each(inner.context.options.timeout);
        inner.clear();
        let context = &inner.context;
        lock(&context.heap).trim(&context.io);
        lock(&context.heap).retry_lingering(&context.io);
        if context.waiter.is_running() {
            // The waiter thread may be about to drop the last completion.
            let until = Instant::now() + Duration::from_millis(50);
            while !context.holders().is_empty() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let mut holders = context.holders();
        if holders.is_empty() && Arc::strong_count(&context.io) > 1 {
            holders.push("the interface that the device was opened with".into());
        }
        if !holders.is_empty() {
            let error = in_use(context, format!("still held by {}", holders.join(", ")));
            let inner = Arc::new(inner);
            return Err(CloseError::new(Self { inner }, error));
        }
        inner.close_node()
    }
}

/// How long a close waits for calls of other threads that hold the device without a handle of it.
const LAST_CALLS: Duration = Duration::from_secs(1);

impl Inner {
    /// Closes the node. It stays open during a status query or a release of memory in another
    /// thread.
    fn close_node(mut self) -> Result<(), CloseError<Device>> {
        let until = Instant::now() + LAST_CALLS;
        let calls = Arc::clone(&self.context.calls);
        // A thread that releases memory may need a lock of a thread that is blocked here.
        let blocked_until = until - LAST_CALLS / 2;
        let mut closing = Some(calls.close(blocked_until));
        loop {
            self.context = match unwrap_last(self.context) {
                // The node closes here. No status query can hold the context any more.
                Ok(_context) => return Ok(()),
                Err((shared, _)) => shared,
            };
            let now = Instant::now();
            if now >= until {
                break;
            }
            if now >= blocked_until {
                closing = None;
            }
            thread::yield_now();
        }
        drop(closing);
        let cause = "a call of another thread, such as a status query, still uses the device";
        let error = self
            .context
            .in_use(CLOSE, cause)
            .helped_by("close it again when that call has returned");
        let inner = Arc::new(self);
        Err(CloseError::new(Device { inner }, error))
    }

    /// The cache of host mappings.
    ///
    /// # Errors
    /// `Forked`: another thread may have been creating it at the fork.
    fn cache(&self, operation: &'static str) -> Result<&Arc<Cache>> {
        let context = &self.context;
        context.check_process(operation)?;
        let options = &context.options;
        let new = || Arc::new(Cache::new(options.cached_mappings, options.cached_bytes));
        Ok(self.cache.get_or_init(new))
    }

    /// Drops what is created again when it is needed.
    fn clear(&mut self) {
        self.copier.clear();
        if let Some(cache) = self.cache.get() {
            cache.clear();
        }
        self.staging.clear();
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.id())
    }
}
