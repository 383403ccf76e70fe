//! The memory domain `gaudi_copy`: allocation, registration, queries and keys of one card.

#![expect(
    unsafe_code,
    reason = "only the caller knows how long memory that it registers lives"
)]

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use gaudi_device::{
    Buffer, CloseError, Device, DeviceId, DeviceSpec, DeviceVa, Error, ErrorKind, Fallback, HostBuffer,
    Location, Options, Pages, Placement, Result,
};
use gaudi_dmabuf::Window;
use gaudi_ranges::Span;
use gaudi_seam::{PciAddress, SharedIo};

use crate::attributes::Attributes;
use crate::card::Card;
use crate::config::Config;
use crate::key::{self, ProcessKey};
use crate::kind::{MemoryType, TypeSet};
use crate::memory::{Backing, Memory, Parts};

const ALLOC: &str = "gaudi_copy alloc";
const REGISTER: &str = "gaudi_copy register";
const QUERY: &str = "gaudi_copy mem_query";

/// Whether an allocation can be exported as a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Export {
    /// It is not exported. The memory shares the driver's pages with other memory of the domain.
    Never,
    /// The first [`MemoryDomain::dmabuf`] exports it. The memory has pages of its own: at least
    /// one page of the driver, 768 MiB on Gaudi2.
    #[default]
    OnDemand,
    /// As `OnDemand`, in pages that it shares with other pooled memory. Their dma-buf is one: an
    /// importer can access all of it, and the driver does not refuse to free memory that an
    /// importer still holds.
    Pooled,
    /// The allocation exports it, and fails if it cannot be exported. The dma-buf stays open until
    /// the memory is freed, as UCX's `UCT_MD_MEM_FLAG_FIXED` did in the port that this crate
    /// follows.
    OnAlloc,
}

/// Options of an allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocOptions {
    /// A power of two up to 1 MiB; 0 counts as 1.
    pub align: u64,
    /// Whether it can be exported.
    pub export: Export,
    /// The page of the driver in bytes; 0 for its default. Another page than the default needs
    /// pages of its own.
    pub page_bytes: u64,
    /// The wanted address, a multiple of the page. It needs pages of its own.
    pub hint: Option<DeviceVa>,
}

impl AllocOptions {
    /// Memory that is never exported.
    pub const PRIVATE: Self = Self {
        align: 0,
        export: Export::Never,
        page_bytes: 0,
        hint: None,
    };
    /// Memory of any size that can be exported.
    pub const POOLED: Self = Self {
        export: Export::Pooled,
        ..Self::PRIVATE
    };
    /// Memory that is exported by its allocation.
    pub const EXPORTED: Self = Self {
        export: Export::OnAlloc,
        ..Self::PRIVATE
    };
}

/// The memory around an address.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemInfo {
    /// Where it lies.
    pub kind: MemoryType,
    /// Its first address.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// The card that it is mapped for.
    pub device: DeviceId,
    /// PCI address of the card; `None` for a mock.
    pub bus: Option<PciAddress>,
    /// The queried address.
    address: u64,
    /// The queried bytes.
    asked: u64,
    id: u64,
}

/// A dma-buf of memory.
#[derive(Debug)]
pub struct DmabufPart {
    /// A descriptor of the caller, close-on-exec. While it is open, memory with pages of its own
    /// cannot be freed, and pooled memory can ([`Export::Pooled`]).
    pub fd: OwnedFd,
    /// Bytes from the dma-buf's start to the queried address.
    pub offset: u64,
    /// Bytes from there to the end of the queried range.
    pub len: u64,
}

/// The memory domain of one card. A clone is the same domain, `Send` and `Sync`.
///
/// All domains of one target in a process share the card's compute node, which has one user at a
/// time. In a fork child of its process every call fails with `Forked`.
#[derive(Clone)]
pub struct MemoryDomain {
    pub(crate) card: Arc<Card>,
}

impl MemoryDomain {
    /// Returns the domain of a card, with the configuration of the environment. Opens nothing.
    ///
    /// # Errors
    /// `InvalidInput`: a variable of [`VARIABLES`](crate::VARIABLES) is invalid.
    pub fn new(target: &DeviceSpec) -> Result<Self> {
        Ok(Self::with_config(target, Config::from_environment()?))
    }

    /// As [`new`](Self::new), with a configuration. A domain of the same target that exists keeps
    /// its own.
    pub fn with_config(target: &DeviceSpec, config: Config) -> Self {
        Self {
            card: Card::of(target, config),
        }
    }

    /// Returns a domain of its own over an open compute node, with or without layers around it.
    /// `target` is only reported. The domain chooses [`Options::memory_offset`].
    ///
    /// # Errors
    /// As [`Device::with_options`].
    pub fn over(io: SharedIo, target: &DeviceSpec, config: Config, options: Options) -> Result<Self> {
        let card = Card::over(io, target, config, options)?;
        Ok(Self { card })
    }

    /// Returns the domain of the card that the environment selects ([`gaudi_hal::choose`]).
    ///
    /// # Errors
    /// `InvalidInput`: a variable is invalid.
    pub fn of_environment() -> Result<Self> {
        let environment = gaudi_hal::Environment::of_process();
        Self::new(&gaudi_hal::choose(None, &environment)?)
    }

    /// Returns the spec of the card.
    pub fn target(&self) -> &DeviceSpec {
        &self.card.target
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.card.config
    }

    /// Whether both use the same card of this process.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.card, &other.card)
    }

    /// Whether the compute node is open.
    pub fn is_open(&self) -> bool {
        self.card.opened().is_some()
    }

    /// Returns the open device, which the first call opens.
    ///
    /// # Errors
    /// `Forked`, or as [`Device::open`].
    pub fn device(&self) -> Result<&Device> {
        self.card.check_process("gaudi_copy open")?;
        self.card.device()
    }

    /// Returns what the domain offers. Opens the control node only.
    ///
    /// # Errors
    /// `Forked`, the error of [`gaudi_hal::control`], or the driver's own error.
    pub fn query(&self) -> Result<Attributes> {
        self.card.check_process("gaudi_copy query")?;
        let info = self.card.info()?;
        // Without a table for the chip no device can be opened.
        let works = if info.asic.is_some() {
            TypeSet::BOTH
        } else {
            TypeSet::default()
        };
        let of_device = TypeSet { host: false, ..works };
        Ok(Attributes {
            bus: self.card.bus(info.device),
            device: info.device,
            node: info.node,
            asic: info.asic,
            module_id: info.module_id,
            alloc: works,
            register: works,
            detect: works,
            dmabuf: of_device,
            register_dmabuf: info.asic.is_some(),
            device_bytes: info.dram_bytes,
            free_device_bytes: info.dram_free_bytes,
            device_page_bytes: info.dram_page_bytes,
            device_base: info.dram_base,
            process_key_bytes: key::PROCESS_KEY_BYTES,
            remote_key_bytes: key::REMOTE_KEY_BYTES,
            costs: self.card.config.costs,
        })
    }

    /// Allocates device memory. Its content is undefined.
    ///
    /// # Errors
    /// - `InvalidInput`: an option is invalid, or `len` is 0.
    /// - `OutOfDeviceMemory`.
    /// - `InUse`: the driver chose addresses that another card's memory has.
    /// - `Forked`, the error of an open or an export, or the driver's own error.
    pub fn alloc(&self, len: u64, options: AllocOptions) -> Result<Memory> {
        self.card.check_process(ALLOC)?;
        let device = self.card.device()?;
        let buffer = allocate(device, len, options)?;
        let export = match options.export {
            Export::OnAlloc => Some(buffer.window(..)?),
            Export::Never | Export::OnDemand | Export::Pooled => None,
        };
        self.memory(
            MemoryType::Device,
            buffer.address().0,
            len,
            Backing::Allocated(Location::from(&buffer)),
            export,
        )
    }

    /// Allocates host memory, pinned and mapped for the card: zeroed, in pages of 4 KiB.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is 0. `OutOfMemory`.
    /// - `Forked`, the error of an open, or the driver's own error.
    pub fn alloc_host(&self, len: usize) -> Result<Memory> {
        self.alloc_host_in(len, Pages::Small, Fallback::Refuse)
    }

    /// As [`alloc_host`](Self::alloc_host), in pages of a kind.
    ///
    /// # Errors
    /// As [`alloc_host`](Self::alloc_host), with advice on how to reserve pages.
    pub fn alloc_host_in(&self, len: usize, pages: Pages, fallback: Fallback) -> Result<Memory> {
        self.card.check_process(ALLOC)?;
        let device = self.card.device()?;
        let mapping = if pages == Pages::Small {
            device.alloc_host(len)?
        } else {
            device.map(&HostBuffer::with_pages(len, pages, fallback)?)?
        };
        let address = mapping.as_ptr().as_ptr().expose_provenance() as u64;
        self.memory(
            MemoryType::Host,
            address,
            len as u64,
            Backing::Allocated(Location::from(&mapping)),
            None,
        )
    }

    /// Frees memory that this domain allocated, or returns it with the error.
    ///
    /// # Errors
    /// - `InUse`: clones of the handle, copies in flight, or a dma-buf in any process hold it.
    /// - `InvalidInput`: the memory is of another domain.
    /// - `Forked`, or the driver's own error.
    pub fn free(&self, memory: Memory) -> Result<(), CloseError<Memory>> {
        const OP: &str = "gaudi_copy free";
        self.check_own(OP, memory)?.close(OP)
    }

    /// Registers memory of the caller, of any alignment: pins it and maps it for the card. Each
    /// registration is a mapping of its own, also of the same bytes.
    ///
    /// # Safety
    /// Until [`deregister`](Self::deregister) has returned `Ok`, or the last handle is dropped and
    /// no copy of it is in flight:
    /// - `len` bytes from `start` stay mapped in this process, readable and writable: no `munmap`,
    ///   no `free` that may return the pages to the kernel, no `mremap`, no `mprotect`;
    /// - while a copy that uses them runs, no reference to them is made or used.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty or leaves the address space.
    /// - `Unsupported`: it is device memory ([`register_device`](Self::register_device)).
    /// - `Forked`, the error of an open, or the driver's own error.
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize) -> Result<Memory> {
        self.card.check_process(REGISTER)?;
        let address = start.addr().get() as u64;
        let Some(span) = Span::new(address, len as u64) else {
            return Err(
                invalid(REGISTER, "the range is empty or leaves the address space")
                    .saw(format!("{len} bytes at {address:#x}"), "1 byte or more"),
            );
        };
        if crate::types::memory_types().lookup(address, 1).kind == MemoryType::Device {
            return Err(Error::unsupported(REGISTER, "the address is device memory")
                .saw(span, "host memory")
                .helped_by("register it with register_device"));
        }
        let device = self.card.device()?;
        // SAFETY: the caller makes the same promises.
        let location = unsafe { device.pin(start, len) }?;
        self.memory(
            MemoryType::Host,
            address,
            len as u64,
            Backing::Registered(location),
            None,
        )
    }

    /// Registers a part of device memory that this domain allocated. The allocation cannot be
    /// freed before the registration.
    ///
    /// # Errors
    /// - `NotFound`: the domain has no device memory there.
    /// - `InvalidInput`: the range is empty, or leaves its allocation.
    /// - `Forked`.
    pub fn register_device(&self, address: u64, len: u64) -> Result<Memory> {
        let info = self.mem_query_for(REGISTER, address, len)?;
        let memory = self.live(REGISTER, &info)?;
        let Some((buffer, start)) = memory.shared.buffer() else {
            return Err(not_found(REGISTER, address, "device memory of the domain"));
        };
        let offset = start + (address - memory.address());
        let location = buffer.at(offset..offset + info.asked)?;
        self.memory(
            MemoryType::Device,
            address,
            info.asked,
            Backing::Registered(location),
            None,
        )
    }

    /// Registers a window of a dma-buf of another exporter, by a mapping for the processor. If the
    /// driver cannot pin that mapping, copies are staged.
    ///
    /// # Errors
    /// - `Unsupported`: a processor cannot map the memory of this exporter, such as a card's.
    /// - `Forked`, the error of an open, or the error of mmap(2).
    pub fn register_dmabuf(&self, window: &Window) -> Result<Memory> {
        self.card.check_process(REGISTER)?;
        let cpu = window.attach_cpu("gaudi_copy")?;
        let device = self.card.device()?;
        let len = window.len() as usize;
        let start = cpu
            .at(0, len)
            .map_err(|errno| Error::from_errno(REGISTER, errno))?;
        // SAFETY: the attachment holds the mapping, and `Memory` drops it after the location. No
        // reference to the memory is made.
        let engines = match unsafe { device.pin(start, len) } {
            Ok(location) => Some(location),
            // The pages of most exporters cannot be pinned (`gup.c:check_vma_flags`, `VM_PFNMAP`).
            Err(error) if matches!(error.kind(), ErrorKind::BadAddress | ErrorKind::InvalidInput) => None,
            Err(error) => return Err(error),
        };
        let address = start.as_ptr().expose_provenance() as u64;
        self.memory(
            MemoryType::Host,
            address,
            len as u64,
            Backing::Dmabuf { engines, cpu },
            None,
        )
    }

    /// Deregisters memory, or returns it with the error. Host memory is unmapped from the card.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn deregister(&self, memory: Memory) -> Result<(), CloseError<Memory>> {
        const OP: &str = "gaudi_copy deregister";
        self.check_own(OP, memory)?.close(OP)
    }

    fn check_own(&self, operation: &'static str, memory: Memory) -> Result<Memory, CloseError<Memory>> {
        if Arc::ptr_eq(&memory.shared.card, &self.card) {
            return Ok(memory);
        }
        let error = invalid(operation, "the memory belongs to another domain").on(memory.device());
        Err(CloseError::new(memory, error))
    }

    fn memory(
        &self,
        kind: MemoryType,
        address: u64,
        len: u64,
        backing: Backing,
        export: Option<Window>,
    ) -> Result<Memory> {
        let device = self.card.device()?.id();
        let card = Arc::clone(&self.card);
        let parts = Parts {
            card,
            device,
            kind,
            address,
            len,
            backing,
        };
        Memory::new(parts, export)
    }

    /// Returns the memory of the domain around `len` bytes at `address`: device memory, and host
    /// memory that the domain allocated or registered. A length of 0 counts as 1. Takes no lock.
    ///
    /// # Errors
    /// - `NotFound`: the domain has no memory there.
    /// - `InvalidInput`: the range starts in memory of the domain and leaves it, or leaves the
    ///   address space.
    /// - `Forked`.
    pub fn mem_query(&self, address: u64, len: u64) -> Result<MemInfo> {
        self.mem_query_for(QUERY, address, len)
    }

    fn mem_query_for(&self, operation: &'static str, address: u64, len: u64) -> Result<MemInfo> {
        self.card.check_process(operation)?;
        let asked = len.max(1);
        let Some(span) = Span::new(address, asked) else {
            return Err(invalid(operation, "the range leaves the address space")
                .saw(format!("{len} bytes at {address:#x}"), "a range below 2^64"));
        };
        let Some((whole, known)) = self.card.find(span) else {
            return Err(self.outside(operation, span));
        };
        // Memory in the table was allocated on an open device.
        let device = self.card.device()?.id();
        Ok(MemInfo {
            kind: known.kind,
            base: whole.start(),
            len: whole.len(),
            device,
            bus: self.card.bus(device),
            address,
            asked,
            id: known.id,
        })
    }

    #[cold]
    fn outside(&self, operation: &'static str, span: Span) -> Error {
        match self.card.find_part(span) {
            Some(part) if part.start() <= span.start() => {
                invalid(operation, "the range leaves its memory").saw(span, format!("inside {part}"))
            }
            _ => not_found(operation, span.start(), "memory of the domain"),
        }
    }

    fn live(&self, operation: &'static str, info: &MemInfo) -> Result<Memory> {
        Memory::by_id(info.id).ok_or_else(|| not_found(operation, info.address, "memory that is not freed"))
    }

    /// Returns a dma-buf of the queried range: a descriptor of the caller, and the offset of the
    /// queried address. The first call exports the memory.
    ///
    /// # Errors
    /// - `Unsupported`: it is host memory that has no dma-buf.
    /// - `InvalidInput`: it was allocated with [`Export::Never`].
    /// - `NotFound`: it was freed since the query.
    /// - `TooManyFiles`, `Forked`, or the error of the export.
    pub fn dmabuf(&self, info: &MemInfo) -> Result<DmabufPart> {
        let window = self.window(info)?;
        let fd = window.dmabuf().as_fd().try_clone_to_owned();
        Ok(DmabufPart {
            fd: fd.map_err(|error| Error::from_errno(QUERY, gaudi_sys::fd::errno_of(error)))?,
            offset: window.offset(),
            len: window.len(),
        })
    }

    /// As [`dmabuf`](Self::dmabuf), as a window that this process counts.
    ///
    /// # Errors
    /// As [`dmabuf`](Self::dmabuf).
    pub fn window(&self, info: &MemInfo) -> Result<Window> {
        self.card.check_process(QUERY)?;
        let memory = self.live(QUERY, info)?;
        let offset = info.address - memory.address();
        if let Some((buffer, start)) = memory.shared.buffer() {
            let at = start + offset;
            return buffer.window(at..at + info.asked);
        }
        if let Some(window) = memory.shared.registered_dmabuf() {
            return window.window(offset, info.asked);
        }
        Err(Error::unsupported(QUERY, "host memory has no dma-buf")
            .on(memory.device())
            .helped_by("allocate it from a memfd and export it with gaudi_dmabuf::Udmabuf"))
    }

    /// Prepares the memory around an address for NICs: exports device memory that is not private,
    /// and keeps the dma-buf open until the memory is freed. Other memory is ready. Returns the
    /// queried memory.
    ///
    /// # Errors
    /// As [`mem_query`](Self::mem_query), or the error of the export.
    pub fn advise(&self, address: u64, len: u64) -> Result<MemInfo> {
        let info = self.mem_query_for("gaudi_copy advise", address, len)?;
        if info.kind == MemoryType::Device {
            match self.window(&info) {
                Ok(window) => self.live(QUERY, &info)?.shared.keep(window),
                Err(error) if error.kind() == ErrorKind::InvalidInput => {}
                Err(error) => return Err(error),
            }
        }
        Ok(info)
    }

    /// Returns the key of memory for this process.
    ///
    /// # Errors
    /// - `InvalidInput`: the memory is of another domain.
    /// - `Forked`.
    pub fn pack(&self, memory: &Memory) -> Result<ProcessKey> {
        const OP: &str = "gaudi_copy pack";
        self.card.check_process(OP)?;
        if !Arc::ptr_eq(&memory.shared.card, &self.card) {
            return Err(invalid(OP, "the memory belongs to another domain").on(memory.device()));
        }
        Ok(ProcessKey::of(memory))
    }

    /// Closes the card, or returns the domain with the error. Nothing happens if other domains of
    /// the target exist.
    ///
    /// # Errors
    /// - `InUse`: memory, transports or other handles of the domain exist.
    /// - `Forked`, or the error of [`Device::close`].
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        const OP: &str = "gaudi_copy close";
        let answer = self.card.check_process(OP);
        let answer = answer.and_then(|()| Card::close(&mut self.card, OP));
        answer.map_err(|error| CloseError::new(self, error))
    }
}

fn allocate(device: &Device, len: u64, options: AllocOptions) -> Result<Buffer> {
    let align = options.align.max(1);
    let is_placed = options.page_bytes != 0 || options.hint.is_some();
    match options.export {
        Export::Never if !is_placed => return device.alloc_aligned(len, align),
        Export::Pooled if !is_placed => return device.alloc_exportable(len, align),
        _ => {}
    }
    if !align.is_power_of_two() || align > 1 << 20 {
        return Err(invalid(ALLOC, "invalid alignment").saw(align, "a power of two up to 1048576"));
    }
    let placement = Placement {
        page_bytes: options.page_bytes,
        hint: options.hint,
    };
    device.alloc_placed(len, placement)
}

fn invalid(operation: &'static str, cause: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation).because(cause)
}

#[cold]
fn not_found(operation: &'static str, address: u64, what: &str) -> Error {
    Error::new(ErrorKind::NotFound, operation)
        .because(format!("no {what} has the address"))
        .showing(format!("{address:#x}"))
}

impl fmt::Debug for MemoryDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDomain({})", self.target())
    }
}
