//! Random call sequences: every function, with NULL, dangling, huge and negative arguments.
//!
//! - *No crash and no leak*: a sequence closes what it opened, and the process then has the same
//!   number of descriptors and mappings as before.
//! - *Every pointer may dangle*, including addresses inside structs: see `Traps`. Only
//!   `hlthunk_free` must dereference its argument, so it gets NULL or memory that the library
//!   allocated.
//! - *Engines execute only NOPs*, and waits are short: the sequences test the library, not the
//!   chip.

#![expect(unsafe_code, reason = "changes the protection of the traps' pages")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::ptr;

use gaudi_conformance::Program;
use gaudi_random::Rng;
use gaudi_spec::gaudi2::{DRAM_VA, block, queue};
use gaudi_sys::RawMapping;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::debug::{DebugOp, HlDebugArgs};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use nix::errno::Errno;

use crate::bench::descriptors;
use crate::card::{Buffer, Card, DRAM_PAGE, PAGE, Q, address_in, address_of, borrow, submission};
use crate::library::{Library, Table};
use crate::types::{
    CsIn, Debugfs, PageFaultInfo, ReserveSigHandle, SigResIn, SignalIn, WaitForSignalData, WaitIn,
    WaitMultiCsIn, name,
};

/// Number of calls in a sequence.
pub const CALLS: u64 = 200;

/// The name of a function, and a call of it with random arguments.
type Call = (&'static str, fn(&mut World, &Table));

macro_rules! calls {
    ($($name:ident => $call:expr;)*) => {
        const TABLE: &[Call] = &[$((concat!("hlthunk_", stringify!($name)), $call)),*];
    };
}

/// The state of a sequence, from which arguments are drawn.
struct World {
    rng: Rng,
    hl: &'static Library,
    /// The compute node, used by most calls.
    fd: c_int,
    /// Other descriptors of the sequence: nodes and exports.
    opened: Vec<c_int>,
    notifiers: Vec<c_int>,
    /// Handles and addresses that calls returned.
    values: Vec<u64>,
    views: Vec<RawMapping>,
    /// Host memory for mappings and query results.
    memory: RawMapping,
    /// NOPs for submissions.
    program: Option<Buffer>,
    /// None where nothing checks the addresses that the library follows: on the driver.
    traps: Option<&'static Traps>,
}

/// Invalid addresses. They stay invalid while the process lives, because the heap could reuse an
/// unmapped address.
struct Traps {
    /// A page that is readable but not writable.
    read_only: RawMapping,
    /// An accessible page, followed by an inaccessible one.
    cliff: RawMapping,
}

impl Traps {
    fn new() -> Result<Self, String> {
        use nix::sys::mman::{ProtFlags, mprotect};
        let pages = |count| RawMapping::anonymous(count * PAGE, true).map_err(|error| error.to_string());
        let (read_only, cliff) = (pages(1)?, pages(2)?);
        let protect = |memory: &RawMapping, page: usize, as_what| {
            let start = ptr::NonNull::new(address_in(memory, page * PAGE)).ok_or("no address")?;
            // SAFETY: the page was just mapped, and no reference to it exists.
            unsafe { mprotect(start, PAGE, as_what) }.map_err(|errno| errno.to_string())
        };
        protect(&read_only, 0, ProtFlags::PROT_READ)?;
        protect(&cliff, 1, ProtFlags::PROT_NONE)?;
        Ok(Self { read_only, cliff })
    }

    fn pick(&self, rng: &mut Rng) -> u64 {
        let at = |memory, inside| address_in(memory, inside).expose_provenance() as u64;
        let read_only = at(&self.read_only, rng.below(PAGE as u64) as usize);
        let cliff = at(&self.cliff, 0);
        rng.pick(&[
            // Below the lowest address that mmap(2) returns.
            1,
            16,
            4095,
            read_only,
            read_only,
            // The struct starts in mapped memory and ends outside.
            cliff + PAGE as u64 - 1,
            cliff + PAGE as u64 - 8,
            cliff + PAGE as u64,
            // Non-canonical, kernel and overflowing addresses.
            1 << 47,
            0x8000_0000_0000_0000,
            0xffff_8000_0000_0000,
            0xffff_ffff_ff60_0000,
            u64::MAX - 4095,
            u64::MAX - 7,
            u64::MAX,
        ])
    }
}

/// A descriptor number that is never open.
const CLOSED: c_int = 900;

fn closed_files() -> Debugfs {
    Debugfs {
        addr_fd: -1,
        data_fd: CLOSED,
        clk_gate_fd: -1,
        clk_gate_val: [0; 32],
    }
}

impl World {
    fn new(card: Card, traps: Option<&'static Traps>, rng: Rng) -> Result<Self, String> {
        Ok(Self {
            rng,
            hl: card.hl,
            fd: card.fd,
            opened: Vec::new(),
            notifiers: Vec::new(),
            values: Vec::new(),
            views: Vec::new(),
            memory: RawMapping::anonymous(16 * PAGE, true).map_err(|error| error.to_string())?,
            program: Buffer::new(card, Program::new().nop()).ok(),
            traps,
        })
    }

    /// Frees what needs the node, and closes all descriptors but the node's.
    fn close_all(&mut self) {
        self.views.clear();
        self.program = None;
        // A notifier's number is the program's own; it ends with its node.
        for fd in self.notifiers.drain(..).chain(self.opened.drain(..)) {
            if nix::fcntl::fcntl(borrow(fd), nix::fcntl::FcntlArg::F_GETFD).is_ok() {
                self.hl.close(fd);
            }
        }
    }

    fn coin(&mut self) -> bool {
        self.rng.percent(50)
    }

    /// An address that dangles, for the kernel.
    fn dangling(&mut self) -> u64 {
        self.traps.map_or(1, |traps| traps.pick(&mut self.rng))
    }

    /// Returns `valid`, or rarely NULL or a dangling address.
    fn pointer<T>(&mut self, valid: *mut T) -> *mut T {
        match self.rng.below(10) {
            0 => ptr::null_mut(),
            1 if self.traps.is_some() => ptr::with_exposed_provenance_mut(self.dangling() as usize),
            _ => valid,
        }
    }

    /// Returns the struct's address, or rarely NULL or a dangling address.
    fn some<T>(&mut self, value: &mut T) -> *mut T {
        self.pointer(ptr::from_mut(value))
    }

    fn some_ref<T>(&mut self, value: &T) -> *const T {
        self.pointer(ptr::from_ref(value).cast_mut())
    }

    fn bytes(&mut self, room: &mut [u8]) -> *mut c_char {
        self.pointer(room.as_mut_ptr().cast())
    }

    /// Returns a descriptor, usually the device's.
    fn fd(&mut self) -> c_int {
        match self.rng.below(20) {
            0 => -1,
            1 => CLOSED,
            2 => self.rng.pick(&[c_int::MIN, c_int::MAX]),
            3 if !self.opened.is_empty() => self.rng.pick(&self.opened),
            _ => self.fd,
        }
    }

    fn fd_to_close(&mut self) -> c_int {
        if self.rng.percent(60) {
            return self.rng.pick(&[-1, CLOSED, c_int::MIN, c_int::MAX]);
        }
        // The kernel may reuse the number for the next open.
        self.opened.pop().unwrap_or(-1)
    }

    fn keep(&mut self, fd: c_int) {
        if fd >= 0 {
            self.opened.push(fd);
        }
    }

    fn keep_notifier(&mut self, fd: c_int) {
        if fd >= 0 {
            self.notifiers.push(fd);
        }
    }

    fn notifier(&mut self) -> c_int {
        match self.notifiers.last() {
            Some(&fd) if !self.rng.percent(20) => fd,
            _ => self.rng.pick(&[-1, CLOSED, c_int::MIN, c_int::MAX]),
        }
    }

    fn notifier_to_release(&mut self) -> c_int {
        self.notifier()
    }

    fn released(&mut self, handle: c_int, code: c_int) {
        if code == 0 {
            self.notifiers.retain(|&fd| fd != handle);
        }
    }

    fn known(&mut self, value: u64) {
        if value != 0 && self.values.len() < 256 {
            self.values.push(value);
        }
    }

    /// Maps a handle like a program does, and keeps the mapping until the sequence ends.
    fn view(&mut self, handle: u64) {
        if handle != 0 && self.views.len() < 16 && self.coin() {
            let card = Card {
                hl: self.hl,
                fd: self.fd,
            };
            self.views.extend(card.mmap(handle, PAGE));
        }
    }

    fn u64(&mut self) -> u64 {
        const ODD: [u64; 22] = [
            0,
            1,
            2,
            3,
            7,
            8,
            48,
            64,
            4095,
            4096,
            4097,
            0x1f_ffe0,
            0x1f_ffe1,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            1 << 32,
            1 << 40,
            0x7fff_ffff_ffff_ffff,
            1 << 63,
            u64::MAX - 4095,
            u64::MAX,
        ];
        match self.rng.below(10) {
            0..4 if !self.values.is_empty() => {
                let value = self.rng.pick(&self.values);
                value.wrapping_add(self.rng.pick(&[0, 0, 0, 1, 4096]))
            }
            4 => self
                .rng
                .pick(&[DRAM_PAGE, DRAM_PAGE + 1, DRAM_VA.start.0, DRAM_VA.end.0]),
            5 => {
                let number = self.rng.below(block::COUNT.into()) as u32;
                block::block(number).map_or(0, |row| row.address.0)
            }
            6 => self.rng.next_u64(),
            _ => self.rng.pick(&ODD),
        }
    }

    /// Returns the place of a counter or a record in its buffer. Linux 7.3 dereferences one whose
    /// address overflows (command_submission.c:hl_interrupt_wait_ioctl), so the driver gets none.
    fn place(&mut self) -> u64 {
        let most = if self.traps.is_some() { u64::MAX } else { 1 << 32 };
        self.u64().min(most)
    }

    fn u32(&mut self) -> u32 {
        if self.coin() {
            self.rng.below(16) as u32
        } else {
            self.u64() as u32
        }
    }

    fn i32(&mut self) -> c_int {
        self.u32() as c_int
    }

    fn queue(&mut self) -> u32 {
        self.rng
            .pick(&[0, 0, 1, 4, 2, 8, 156, queue::CPU.0, queue::COUNT, u32::MAX])
    }

    fn flags(&mut self) -> u32 {
        if self.rng.percent(80) {
            0
        } else {
            1 << self.rng.below(20)
        }
    }

    /// Returns a timeout in microseconds.
    fn soon(&mut self) -> u64 {
        self.rng.pick(&[0, 0, 0, 1, 100, 1000])
    }

    fn text(&mut self) -> *const c_char {
        const TEXTS: [&CStr; 6] = [
            c"",
            c"x",
            c"ffff:ff:1f.7",
            c"ff:1f.7",
            c"../../../../../../../../etc/passwd",
            c"0000:",
        ];
        let text = self.rng.pick(&TEXTS);
        self.pointer(text.as_ptr().cast_mut())
    }

    /// Returns an address that only the driver reads, and a size.
    fn host(&mut self) -> (*mut c_void, u64) {
        let inside = self.rng.below(PAGE as u64) as usize;
        match self.rng.below(6) {
            0 => (ptr::null_mut(), self.u64()),
            1 | 2 => {
                let dangling = self.dangling() as usize;
                (ptr::with_exposed_provenance_mut(dangling), self.u64())
            }
            3 => (
                address_in(&self.memory, inside),
                u64::MAX - self.rng.below(1 << 20),
            ),
            _ => (
                address_in(&self.memory, inside),
                1 + self.rng.below(8 * PAGE as u64),
            ),
        }
    }

    fn word(&mut self) -> *mut c_void {
        match self.rng.below(4) {
            0 => ptr::null_mut(),
            1 => ptr::with_exposed_provenance_mut(self.dangling() as usize),
            _ => address_in(&self.memory, 8 * self.rng.below(512) as usize),
        }
    }

    /// Returns an address for a struct field, and the number of bytes at that address.
    fn room(&mut self) -> (u64, u32) {
        let valid = address_in(&self.memory, 0).expose_provenance() as u64;
        match self.rng.below(4) {
            0 => (0, self.u32()),
            1 => (self.dangling(), self.u32()),
            _ => (valid, self.rng.pick(&[0, 1, 8, 64, 4096, 16 * PAGE as u32])),
        }
    }

    fn info(&mut self) -> HlInfoArgs {
        let (to, size) = self.room();
        let op = if self.rng.percent(90) {
            self.rng.below(42) as u32
        } else {
            self.u32()
        };
        HlInfoArgs::new(InfoOp(op), to, size, self.u32())
    }

    fn debug(&mut self) -> HlDebugArgs {
        let ((input_ptr, input_size), (output_ptr, output_size)) = (self.room(), self.room());
        HlDebugArgs {
            input_ptr,
            output_ptr,
            input_size,
            output_size,
            op: DebugOp(self.rng.below(10) as u32),
            reg_idx: self.u32(),
            enable: u32::from(self.coin()),
            ctx_id: 0,
        }
    }

    fn chunk(&mut self) -> HlCsChunk {
        let outside = self.rng.pick(&[0, 8, DRAM_VA.end.0, u64::MAX - 8]);
        let queue = self.queue();
        match &self.program {
            Some(program) if !self.rng.percent(15) => HlCsChunk {
                queue_index: queue,
                ..program.chunk(Q)
            },
            _ => HlCsChunk::user(queue, outside, 8),
        }
    }

    fn chunks(&mut self) -> (Vec<HlCsChunk>, Vec<HlCsChunk>) {
        let (execute, restore) = (self.rng.below(4), self.rng.below(2));
        let execute = (0..execute).map(|_| self.chunk()).collect();
        (execute, (0..restore).map(|_| self.chunk()).collect())
    }

    fn submission(&mut self, execute: &[HlCsChunk], restore: &[HlCsChunk]) -> CsIn {
        let mut input = submission(execute, restore, CsFlags(self.flags()));
        match self.rng.below(20) {
            0 => input.chunks_execute = self.dangling(),
            1 => {
                input.chunks_restore = self.dangling();
                input.num_chunks_restore = self.rng.pick(&[0, 1, 2, 64]);
            }
            2 => input.num_chunks_execute = u32::MAX,
            _ => {}
        }
        input
    }

    fn wait_data(&mut self, number: &u64) -> WaitForSignalData {
        WaitForSignalData {
            signal_seq: if self.coin() {
                address_of(number)
            } else {
                self.dangling()
            },
            signal_seq_nr: self.rng.pick(&[1, 1, 1, 0, 2]),
            queue_index: self.queue(),
            collective_engine_id: self.u32(),
            ..WaitForSignalData::default()
        }
    }

    fn wait_in(&mut self, data: &WaitForSignalData) -> WaitIn {
        WaitIn {
            wait_for_signal: self.some_ref(data).expose_provenance() as u64,
            num_wait_for_signal: self.rng.pick(&[1, 1, 1, 0, u32::MAX]),
            flags: self.flags(),
            ..WaitIn::default()
        }
    }

    fn multi(&mut self, numbers: &[u64; 3]) -> WaitMultiCsIn {
        WaitMultiCsIn {
            seq: self.some_ref(numbers).expose_provenance() as u64,
            timeout_us: self.soon(),
            seq_len: self.rng.pick(&[0, 1, 3, 32, 33, u32::MAX]),
        }
    }

    fn ids(&mut self, ids: &[u32; 4]) -> (*const u32, u32) {
        match self.rng.below(4) {
            0 => (ptr::null(), self.u32()),
            1 => (ptr::with_exposed_provenance(self.dangling() as usize), self.u32()),
            _ => (ids.as_ptr(), 1 + self.rng.below(4) as u32),
        }
    }
}

calls! {
    open => |w, hl| { let text = w.text(); let fd = hl.open(w.u32(), text); w.keep(fd); };
    open_by_module_id => |w, hl| { let fd = hl.open_by_module_id(w.u32()); w.keep(fd); };
    open_control => |w, hl| { let text = w.text(); let fd = hl.open_control(w.i32(), text); w.keep(fd); };
    open_control_by_name => |w, hl| { let text = w.text(); let fd = hl.open_control_by_name(w.u32(), text); w.keep(fd); };
    open_control_by_module_id => |w, hl| { let fd = hl.open_control_by_module_id(w.u32()); w.keep(fd); };
    open_control_by_bus_id => |w, hl| { let text = w.text(); let fd = hl.open_control_by_bus_id(text); w.keep(fd); };
    close => |w, hl| { let fd = w.fd_to_close(); hl.close(fd); };
    get_device_count => |w, hl| { hl.get_device_count(w.u32()); };
    get_device_id_from_fd => |w, hl| { hl.get_device_id_from_fd(w.fd()); };
    get_device_name_from_fd => |w, hl| { hl.get_device_name_from_fd(w.fd()); };
    get_pci_bus_id_from_fd => |w, hl| { let mut text = [0_u8; 64]; let len = w.rng.below(66) as i32 - 1; hl.get_pci_bus_id_from_fd(w.fd(), w.bytes(&mut text), len.min(64)); };
    get_device_index_from_pci_bus_id => |w, hl| { let text = w.text(); hl.get_device_index_from_pci_bus_id(text); };
    get_version => |_, hl| { hl.free(hl.get_version().cast()); };
    malloc => |w, hl| { let size = w.rng.below(1 << 16) as usize; hl.free(hl.malloc(size)); };
    free => |_, hl| { hl.free(ptr::null_mut()); };
    get_info => |w, hl| { let mut args = w.info(); hl.get_info(w.fd(), w.some(&mut args)); };
    get_hw_ip_info => |w, hl| { hl.get_hw_ip_info(w.fd(), w.some(&mut Default::default())); };
    get_open_stats => |w, hl| { hl.get_open_stats(w.fd(), w.some(&mut Default::default())); };
    get_hw_asic_status => |w, hl| { hl.get_hw_asic_status(w.fd(), w.some(&mut Default::default())); };
    get_dram_usage => |w, hl| { hl.get_dram_usage(w.fd(), w.some(&mut Default::default())); };
    get_device_status_info => |w, hl| { hl.get_device_status_info(w.fd()); };
    is_device_idle => |w, hl| { hl.is_device_idle(w.fd()); };
    get_busy_engines_mask => |w, hl| { hl.get_busy_engines_mask(w.fd(), w.some(&mut Default::default())); };
    get_engine_status => |w, hl| { let mut text = [0_u8; 4096]; let size = w.rng.pick(&[0, 1, 1024, 4096]); hl.get_engine_status(w.fd(), w.bytes(&mut text), size, w.some(&mut 0)); };
    get_pll_frequency => |w, hl| { hl.get_pll_frequency(w.fd(), w.u32(), w.some(&mut Default::default())); };
    get_device_utilization => |w, hl| { hl.get_device_utilization(w.fd(), w.u32(), w.some(&mut Default::default())); };
    get_hw_events_arr => |w, hl| { let mut events = [0_u32; 64]; let to = w.pointer(events.as_mut_ptr()); let size = w.rng.pick(&[0, 1, 8, 256]); hl.get_hw_events_arr(w.fd(), w.coin(), size, to); };
    get_clk_rate => |w, hl| { hl.get_clk_rate(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    get_reset_count_info => |w, hl| { hl.get_reset_count_info(w.fd(), w.some(&mut Default::default())); };
    get_time_sync_info => |w, hl| { hl.get_time_sync_info(w.fd(), w.some(&mut Default::default())); };
    get_sync_manager_info => |w, hl| { hl.get_sync_manager_info(w.fd(), w.i32(), w.some(&mut Default::default())); };
    get_dev_memalloc_page_orders => |w, hl| { hl.get_dev_memalloc_page_orders(w.fd(), w.some(&mut Default::default())); };
    get_cs_counters_info => |w, hl| { hl.get_cs_counters_info(w.fd(), w.some(&mut Default::default())); };
    get_pci_counters_info => |w, hl| { hl.get_pci_counters_info(w.fd(), w.some(&mut Default::default())); };
    get_clk_throttle_info => |w, hl| { hl.get_clk_throttle_info(w.fd(), w.some(&mut Default::default())); };
    get_total_energy_consumption_info => |w, hl| { hl.get_total_energy_consumption_info(w.fd(), w.some(&mut Default::default())); };
    get_power_info => |w, hl| { hl.get_power_info(w.fd(), w.some(&mut Default::default())); };
    get_dram_replaced_rows_info => |w, hl| { hl.get_dram_replaced_rows_info(w.fd(), w.some(&mut Default::default())); };
    get_dram_pending_rows_info => |w, hl| { hl.get_dram_pending_rows_info(w.fd(), w.some(&mut Default::default())); };
    get_sec_attest_info => |w, hl| { hl.get_sec_attest_info(w.fd(), w.u32(), w.some(&mut Default::default())); };
    fw_send_generic_request => |w, hl| { let mut bytes = [0_u8; 4096]; let size = w.rng.pick(&[0, 1, 64, 4096]); let to = w.bytes(&mut bytes); hl.fw_send_generic_request(w.fd(), to.cast(), size, w.u32()); };
    device_memory_alloc => |w, hl| { let size = w.u64(); let handle = hl.device_memory_alloc(w.fd(), size, w.u64(), w.coin(), w.coin()); w.known(handle); };
    device_memory_free => |w, hl| { hl.device_memory_free(w.fd(), w.u64()); };
    device_memory_map => |w, hl| { let va = hl.device_memory_map(w.fd(), w.u64(), w.u64()); w.known(va); };
    host_memory_map => |w, hl| { let (at, size) = w.host(); let va = hl.host_memory_map(w.fd(), at, w.u64(), size); w.known(va); };
    host_memory_map_flags => |w, hl| { let (at, size) = w.host(); let va = hl.host_memory_map_flags(w.fd(), at, w.u64(), size, w.u32()); w.known(va); };
    memory_unmap => |w, hl| { hl.memory_unmap(w.fd(), w.u64()); };
    device_memory_export_dmabuf_fd => |w, hl| { let fd = hl.device_memory_export_dmabuf_fd(w.fd(), w.u64(), w.u64(), w.u32()); w.keep(fd); };
    device_mapped_memory_export_dmabuf_fd => |w, hl| { let flags = if w.coin() { crate::cases::EXPORT_FLAGS } else { w.u32() }; let fd = hl.device_mapped_memory_export_dmabuf_fd(w.fd(), w.u64(), w.u64(), w.u64(), flags); w.keep(fd); };
    get_hw_block => |w, hl| { let mut handle = 0; hl.get_hw_block(w.fd(), w.u64(), w.some(&mut 0), w.some(&mut handle)); w.view(handle); };
    allocate_timestamp_elements => |w, hl| { let mut handle = 0; hl.allocate_timestamp_elements(w.fd(), w.u32(), w.some(&mut handle)); w.known(handle); w.view(handle); };
    request_command_buffer => |w, hl| { let mut handle = 0; hl.request_command_buffer(w.fd(), w.u32(), w.some(&mut handle)); w.known(handle); w.view(handle); };
    request_mapped_command_buffer => |w, hl| { let mut handle = 0; hl.request_mapped_command_buffer(w.fd(), w.u32(), w.some(&mut handle)); w.known(handle); w.view(handle); };
    get_mapped_cb_device_va_by_handle => |w, hl| { hl.get_mapped_cb_device_va_by_handle(w.fd(), w.u64(), w.some(&mut Default::default())); };
    destroy_command_buffer => |w, hl| { hl.destroy_command_buffer(w.fd(), w.u64()); };
    get_cb_usage_count => |w, hl| { hl.get_cb_usage_count(w.fd(), w.u64(), w.some(&mut Default::default())); };
    command_submission => |w, hl| { let (chunks, more) = w.chunks(); let input = w.submission(&chunks, &more); hl.command_submission(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    command_submission_timeout => |w, hl| { let (chunks, more) = w.chunks(); let input = w.submission(&chunks, &more); hl.command_submission_timeout(w.fd(), w.some_ref(&input), w.some(&mut Default::default()), w.u32()); };
    staged_command_submission => |w, hl| { let (chunks, more) = w.chunks(); let input = w.submission(&chunks, &more); hl.staged_command_submission(w.fd(), w.u64(), w.some_ref(&input), w.some(&mut Default::default())); };
    staged_command_submission_timeout => |w, hl| { let (chunks, more) = w.chunks(); let input = w.submission(&chunks, &more); hl.staged_command_submission_timeout(w.fd(), w.u64(), w.some_ref(&input), w.some(&mut Default::default()), w.u32()); };
    staged_command_submission_encaps_signals => |w, hl| { let (chunks, more) = w.chunks(); let input = w.submission(&chunks, &more); hl.staged_command_submission_encaps_signals(w.fd(), w.u64(), w.some_ref(&input), w.some(&mut Default::default())); };
    cs_flush_pci_hbw_writes => |w, hl| { hl.cs_flush_pci_hbw_writes(w.fd()); };
    engine_cores_set_mode => |w, hl| { let ids = [0_u32, 1, 2, u32::MAX]; let (at, count) = w.ids(&ids); hl.engine_cores_set_mode(w.fd(), at, count, w.u32()); };
    engines_command => |w, hl| { let ids = [0_u32, 1, 2, u32::MAX]; let (at, count) = w.ids(&ids); hl.engines_command(w.fd(), at, count, w.u32()); };
    signal_submission => |w, hl| { let input = SignalIn { queue_index: w.queue(), flags: w.flags(), ..Default::default() }; hl.signal_submission(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    signal_submission_timeout => |w, hl| { let input = SignalIn { queue_index: w.queue(), flags: w.flags(), ..Default::default() }; hl.signal_submission_timeout(w.fd(), w.some_ref(&input), w.some(&mut Default::default()), w.u32()); };
    wait_for_signal => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_signal(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    wait_for_signal_timeout => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_signal_timeout(w.fd(), w.some_ref(&input), w.some(&mut Default::default()), w.u32()); };
    wait_for_collective_signal => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_collective_signal(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    wait_for_collective_signal_timeout => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_collective_signal_timeout(w.fd(), w.some_ref(&input), w.some(&mut Default::default()), w.u32()); };
    reserve_encaps_signals => |w, hl| { let input = SigResIn { queue_index: w.queue(), count: w.u32() }; hl.reserve_encaps_signals(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    unreserve_encaps_signals => |w, hl| { let handle = ReserveSigHandle { id: w.u32(), ..Default::default() }; hl.unreserve_encaps_signals(w.fd(), w.some_ref(&handle), w.some(&mut Default::default())); };
    wait_for_reserved_encaps_signals => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_reserved_encaps_signals(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    wait_for_reserved_encaps_collective_signals => |w, hl| { let number = w.u64(); let data = w.wait_data(&number); let input = w.wait_in(&data); hl.wait_for_reserved_encaps_collective_signals(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    wait_for_cs => |w, hl| { hl.wait_for_cs(w.fd(), w.u64(), w.soon(), w.some(&mut Default::default())); };
    wait_for_cs_with_timestamp => |w, hl| { hl.wait_for_cs_with_timestamp(w.fd(), w.u64(), w.soon(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    wait_for_multi_cs => |w, hl| { let numbers = [1_u64, 2, 3]; let input = w.multi(&numbers); hl.wait_for_multi_cs(w.fd(), w.some_ref(&input), w.some(&mut Default::default())); };
    wait_for_multi_cs_with_timestamp => |w, hl| { let numbers = [1_u64, 2, 3]; let input = w.multi(&numbers); hl.wait_for_multi_cs_with_timestamp(w.fd(), w.some_ref(&input), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    wait_for_interrupt => |w, hl| { let at = w.word(); hl.wait_for_interrupt(w.fd(), at, w.u64(), w.u32(), w.soon(), w.some(&mut 0)); };
    wait_for_interrupt_with_timestamp => |w, hl| { let at = w.word(); hl.wait_for_interrupt_with_timestamp(w.fd(), at, w.u64(), w.u32(), w.soon(), w.some(&mut 0), w.some(&mut 0)); };
    wait_for_interrupt_by_handle => |w, hl| { hl.wait_for_interrupt_by_handle(w.fd(), w.u64(), w.place(), w.u64(), w.u32(), w.soon(), w.some(&mut Default::default())); };
    wait_for_interrupt_by_handle_with_timestamp => |w, hl| { hl.wait_for_interrupt_by_handle_with_timestamp(w.fd(), w.u64(), w.place(), w.u64(), w.u32(), w.soon(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    register_timestamp_interrupt => |w, hl| { hl.register_timestamp_interrupt(w.fd(), w.u32(), w.u64(), w.place(), w.u64(), w.u64(), w.place()); };
    notifier_create => |w, hl| { let fd = hl.notifier_create(w.fd()); w.keep_notifier(fd); };
    notifier_release => |w, hl| { let handle = w.notifier_to_release(); let code = hl.notifier_release(w.fd(), handle); w.released(handle, code); };
    notifier_recv => |w, hl| { let handle = w.notifier(); hl.notifier_recv(w.fd(), handle, w.some(&mut 0), w.some(&mut 0), w.u32(), (w.rng.below(3)) as u32); };
    get_event_record => |w, hl| { hl.get_event_record(w.fd(), w.u32(), w.some(&mut Default::default())); };
    get_page_fault_info => |w, hl| { let mut room = [0_u64; 64]; let mut info = PageFaultInfo { mappings_buf: w.some(&mut room).expose_provenance() as u64, ..Default::default() }; let count = w.rng.pick(&[0, 1, 32]); hl.get_page_fault_info(w.fd(), w.some(&mut info), count); };
    debug => |w, hl| { let mut args = w.debug(); hl.debug(w.fd(), w.some(&mut args)); };
    profiler_start => |w, hl| { hl.profiler_start(w.fd()); };
    profiler_stop => |w, hl| { hl.profiler_stop(w.fd()); };
    profiler_get_trace => |w, hl| { let mut bytes = [0_u8; 64]; let to = w.bytes(&mut bytes); hl.profiler_get_trace(w.fd(), to.cast(), w.some(&mut 64), w.some(&mut 0)); };
    profiler_destroy => |_, hl| { hl.profiler_destroy(); };
    debugfs_open => |w, hl| { let mut files = closed_files(); hl.debugfs_open(w.fd(), w.some(&mut files)); };
    debugfs_read => |w, hl| { let mut files = closed_files(); hl.debugfs_read(w.some(&mut files), w.u64(), w.some(&mut Default::default())); };
    debugfs_write => |w, hl| { let mut files = closed_files(); hl.debugfs_write(w.some(&mut files), w.u64(), w.u32()); };
    debugfs_close => |w, hl| { let mut files = closed_files(); hl.debugfs_close(w.some(&mut files)); };
    deprecated_func1 => |w, hl| { hl.deprecated_func1(w.fd(), w.u64(), w.soon(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    deprecated_func2 => |w, hl| { hl.deprecated_func2(w.fd(), w.u32(), w.u64(), w.u64(), w.u64(), w.u64(), w.u64()); };
    deprecated_func3 => |w, hl| { hl.deprecated_func3(w.fd(), w.u32(), w.some(&mut Default::default())); };
    get_device_index_from_module_id => |w, hl| { hl.get_device_index_from_module_id(w.u32()); };
    get_mac_addr_info => |w, hl| { hl.get_mac_addr_info(w.fd(), w.some(&mut Default::default())); };
    get_habana_link_state => |w, hl| { hl.get_habana_link_state(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    get_habana_link_statistics => |w, hl| { hl.get_habana_link_statistics(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    get_time_sync_per_die_info => |w, hl| { hl.get_time_sync_per_die_info(w.fd(), w.u32(), w.some(&mut Default::default())); };
    get_dev_info_signed => |w, hl| { hl.get_dev_info_signed(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_get_ports_masks => |w, hl| { hl.nic_get_ports_masks(w.fd(), w.some(&mut Default::default())); };
    device_memory_read_block_experimental => |w, hl| { let mut words = [0_u32; 64]; let to = w.pointer(words.as_mut_ptr()); let size = w.rng.pick(&[0, 4, 256]); hl.device_memory_read_block_experimental(w.fd(), to, w.u64(), size, w.u32()); };
    nic_xe_device_memory_alloc => |w, hl| { hl.nic_xe_device_memory_alloc(w.fd(), w.u32(), w.u64()); };
    nic_xe_device_memory_free => |w, hl| { hl.nic_xe_device_memory_free(w.fd(), w.u64()); };
    nic_xe_memory_map => |w, hl| { let (at, size) = w.host(); hl.nic_xe_memory_map(w.fd(), w.u32(), w.u64(), at, w.u64(), size); };
    nic_xe_memory_unmap => |w, hl| { hl.nic_xe_memory_unmap(w.fd(), w.u32(), w.u64(), w.u64()); };
    nic_xe_vm_create => |w, hl| { hl.nic_xe_vm_create(w.fd(), w.some(&mut 0), w.some(&mut 0)); };
    nic_xe_vm_destroy => |w, hl| { hl.nic_xe_vm_destroy(w.fd(), w.u32(), -1); };
    alloc_coll_conn => |w, hl| { hl.alloc_coll_conn(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    alloc_conn => |w, hl| { hl.alloc_conn(w.fd(), w.u32(), w.some(&mut Default::default())); };
    destroy_conn => |w, hl| { hl.destroy_conn(w.fd(), w.u32(), w.u32()); };
    nic_alloc_user_db_fifo => |w, hl| { hl.nic_alloc_user_db_fifo(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_cq_create => |w, hl| { hl.nic_cq_create(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_cq_destroy => |w, hl| { hl.nic_cq_destroy(w.fd(), w.u64()); };
    nic_cq_update_consumed_entries => |w, hl| { hl.nic_cq_update_consumed_entries(w.fd(), w.u64(), w.u32()); };
    nic_cq_wait => |w, hl| { hl.nic_cq_wait(w.fd(), w.u64(), w.some(&mut Default::default()), w.some(&mut Default::default()), w.some(&mut Default::default()), w.soon()); };
    nic_dump_qp => |w, hl| { let mut text = [0_u8; 64]; let to = w.bytes(&mut text); hl.nic_dump_qp(w.fd(), w.u32(), w.u32(), w.u32(), to, 64); };
    nic_eq_poll => |w, hl| { hl.nic_eq_poll(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_user_ccq_set => |w, hl| { hl.nic_user_ccq_set(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    nic_user_ccq_unset => |w, hl| { hl.nic_user_ccq_unset(w.fd(), w.u32()); };
    nic_user_cq_id_alloc => |w, hl| { hl.nic_user_cq_id_alloc(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    nic_user_cq_id_set => |w, hl| { hl.nic_user_cq_id_set(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    nic_user_cq_id_unset => |w, hl| { hl.nic_user_cq_id_unset(w.fd(), w.some(&mut Default::default())); };
    nic_user_cq_set => |w, hl| { hl.nic_user_cq_set(w.fd(), w.u32(), w.u64(), w.u32()); };
    nic_user_cq_unset => |w, hl| { hl.nic_user_cq_unset(w.fd(), w.u32()); };
    nic_user_cq_update_ci => |w, hl| { hl.nic_user_cq_update_ci(w.fd(), w.u32(), w.u32()); };
    nic_user_db_fifo_set => |w, hl| { hl.nic_user_db_fifo_set(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    nic_user_db_fifo_unset => |w, hl| { hl.nic_user_db_fifo_unset(w.fd(), w.u32(), w.u32()); };
    nic_user_encap_alloc => |w, hl| { hl.nic_user_encap_alloc(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_user_encap_set => |w, hl| { hl.nic_user_encap_set(w.fd(), w.some(&mut Default::default())); };
    nic_user_encap_unset => |w, hl| { hl.nic_user_encap_unset(w.fd(), w.u32(), w.u32()); };
    nic_user_get_app_params => |w, hl| { hl.nic_user_get_app_params(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_user_set_app_params => |w, hl| { hl.nic_user_set_app_params(w.fd(), w.u32(), w.some(&mut Default::default())); };
    nic_wq_arr_set => |w, hl| { hl.nic_wq_arr_set(w.fd(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    nic_wq_arr_unset => |w, hl| { hl.nic_wq_arr_unset(w.fd(), w.u32(), w.u32()); };
    set_requester_conn_ctx => |w, hl| { hl.set_requester_conn_ctx(w.fd(), w.u32(), w.u32(), w.some(&mut Default::default()), w.some(&mut Default::default())); };
    set_responder_conn_ctx => |w, hl| { hl.set_responder_conn_ctx(w.fd(), w.u32(), w.u32(), w.some(&mut Default::default())); };
}

/// Returns the process's descriptors and its number of mappings.
fn holdings() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    (descriptors().len(), maps.lines().count())
}

/// Runs sequences until `calls` calls were made. Reports each sequence's number before it starts.
///
/// # Errors
/// A description of what a sequence leaked, or of an open that failed after it.
pub fn run(hl: &'static Library, seed: u64, calls: u64, mut begins: impl FnMut(u64)) -> Result<(), String> {
    let traps: &'static Traps = Box::leak(Box::new(Traps::new()?));
    let mut first = None;
    for case in 0..calls.div_ceil(CALLS) {
        begins(case);
        sequence(hl, traps, Rng::of_case(seed, case)).map_err(|why| format!("sequence {case}: {why}"))?;
        let (descriptors, maps) = holdings();
        // The first sequence loads what is loaded once. Ignore mappings of the heap, which vary.
        let (had, mapped) = *first.get_or_insert((descriptors, maps));
        if descriptors != had || maps > mapped + 64 {
            return Err(format!(
                "sequence {case} leaked: {descriptors} descriptors, {had} before; {maps} mappings, {mapped} before"
            ));
        }
    }
    Ok(())
}

fn sequence(hl: &'static Library, traps: &'static Traps, rng: Rng) -> Result<(), String> {
    let fd = hl.open(name::DONT_CARE, ptr::null());
    if fd < 0 {
        return Err(format!("cannot open the device: {}", Errno::last()));
    }
    let mut world = World::new(Card { hl, fd }, Some(traps), rng)?;
    for _ in 0..CALLS {
        let (_, call) = world.rng.pick(TABLE);
        call(&mut world, hl.table());
    }
    world.close_all();
    drop(world);
    hl.close(fd);
    Ok(())
}

/// The functions of which a call needs what another returned.
const MAKERS: [&str; 6] = [
    "hlthunk_device_memory_alloc",
    "hlthunk_device_memory_map",
    "hlthunk_host_memory_map",
    "hlthunk_request_command_buffer",
    "hlthunk_command_submission",
    "hlthunk_notifier_create",
];

/// Calls `function` until the process is killed, on any backend: no pointer dangles. Every fourth
/// call is of a function that makes its objects.
pub(crate) fn repeat(card: Card, function: &str) -> Result<(), String> {
    let find = |name: &str| TABLE.iter().find(|row| row.0 == name).map(|row| row.1);
    let call = find(function).ok_or("not a function of the library")?;
    let mut world = World::new(card, None, Rng::of_case(1, 0))?;
    loop {
        for _ in 0..3 {
            call(&mut world, card.hl.table());
        }
        let maker = world.rng.pick(&MAKERS);
        if let Some(make) = find(maker) {
            make(&mut world, card.hl.table());
        }
        if world.opened.len() + world.notifiers.len() > 64 {
            world.close_all();
        }
    }
}

/// The names of all functions.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::TABLE;
    use crate::library::SYMBOLS;

    #[test]
    fn every_function_is_called() {
        let called: BTreeSet<_> = TABLE.iter().map(|row| row.0).collect();
        let all: BTreeSet<_> = SYMBOLS.iter().copied().collect();
        assert_eq!(called, all, "every function has a random call");
    }
}
