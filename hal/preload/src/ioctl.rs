//! Records an ioctl: its argument before and after, and the memory that it refers to. Also records
//! a command that write(2) passes to an RDMA device.

use std::sync::OnceLock;

use gaudi_capture::WriteCommand;
use gaudi_capture::pointers::{MAX_ARGUMENT, Pointer, Row, argument_size, is_vfio, of_vfio, table};
use gaudi_capture::raw::{self, Piece};
use gaudi_capture::record::{FdSource, IoctlRecord, Moment, OpenRecord, WriteRecord};
use gaudi_ring::{Author, Local, Session};
use gaudi_uapi::ioctl::Parts;

use crate::author::{introduce, with, write};
use crate::data::{self, Effect, To};
use crate::files::{self, File};
use crate::memory;
use crate::next::{errno, kernel_result, set_errno};
use crate::out::Out;

/// Scratch memory for the memory that one ioctl refers to.
const SCRATCH: usize = 128 << 10;
/// Bytes of an argument that most ioctls do not exceed.
const SMALL: usize = 64;
/// Maximum number of ranges of an RDMA ioctl.
const RDMA_PIECES: usize = 64;
/// Maximum number of ranges of another ioctl. A longer list takes longer to clear than the call.
const PIECES: usize = 8;

static POINTERS: OnceLock<Vec<Row>> = OnceLock::new();

/// Builds the table of pointers: the recording itself must not allocate.
pub(crate) fn prepare() {
    POINTERS.get_or_init(table);
}

/// Calls `next` and records the call.
#[inline]
pub(crate) fn record(
    session: &Session,
    file: File,
    (fd, request, argument): (i32, u32, u64),
    mut next: impl FnMut() -> i32,
) -> i32 {
    let mut answer = None;
    session.with(|local, author| {
        introduce(session, local, author);
        if file.is_open() && !file.is_introduced() {
            introduce_file(session, local, author, fd, file, FdSource::Inherited);
        }
        let call = Call {
            session,
            local,
            author,
            file,
            fd,
            request,
            argument,
        };
        answer = Some(call.run(&mut next));
    });
    // Without a ring, or in a thread that ends.
    answer.unwrap_or_else(next)
}

/// Calls `next`, a write(2) of an RDMA command, and records the command and its response.
pub(crate) fn record_write(
    session: &Session,
    file: File,
    (fd, address, len): (i32, u64, u64),
    mut next: impl FnMut() -> isize,
) -> isize {
    let mut answer = None;
    session.with(|local, author| {
        introduce(session, local, author);
        if !file.is_introduced() {
            introduce_file(session, local, author, fd, file, FdSource::Inherited);
        }
        session.scratch(local, SCRATCH, |bytes| {
            let before = errno();
            let mut pieces = Pieces {
                ranges: &mut [NO_RANGE; 2],
                count: 0,
                bytes,
                used: 0,
            };
            pieces.take((address, len), Moment::Entry, SCRATCH / 2);
            let command = pieces
                .iter()
                .next()
                .and_then(|piece| WriteCommand::of(piece.bytes));
            let time_ns = session.now();
            set_errno(before);
            let result = next();
            let after = errno();
            let end_ns = session.now();
            if let Some(command) = command.filter(|command| result >= 0 && command.response != 0) {
                pieces.take(
                    (command.response, command.response_bytes()),
                    Moment::Exit,
                    SCRATCH / 2,
                );
            }
            set_errno(after);
            let record = WriteRecord {
                time_ns,
                duration_ns: end_ns.saturating_sub(time_ns).max(1),
                pid: author.pid,
                tid: author.tid,
                fd,
                device: file.device(),
                result: kernel_result(result as i64),
                memory: Vec::new(),
            };
            write(session, local, |out| raw::write(out, &record, pieces.iter()));
            set_errno(after);
            answer = Some(result);
        });
    });
    // Without a ring, or in a thread that ends.
    answer.unwrap_or_else(next)
}

/// Records a descriptor that the program has got in a way that was not recorded, or from another
/// process.
pub(crate) fn introduce_file(
    session: &Session,
    local: &Local,
    author: Author,
    fd: i32,
    file: File,
    source: FdSource,
) {
    let saved = errno();
    let mut buffer = [0; 512];
    let path = files::target(fd, &mut buffer);
    let open = OpenRecord {
        time_ns: session.now(),
        duration_ns: 0,
        pid: author.pid,
        tid: author.tid,
        source,
        path: Vec::new(),
        flags: 0,
        device: file.device(),
        result: i64::from(fd),
    };
    write(session, local, |out| raw::open(out, &open, path));
    files::set(session, fd, file.introduced());
    set_errno(saved);
}

/// Records a descriptor that another process has sent.
pub(crate) fn received(session: &Session, fd: i32, source: FdSource) {
    files::forget(fd);
    let file = files::of(session, fd);
    if session.filter().files && file.records_file() {
        with(session, |local, author| {
            introduce_file(session, local, author, fd, file, source);
        });
    }
}

struct Call<'a> {
    session: &'a Session,
    local: &'a Local,
    author: Author,
    file: File,
    fd: i32,
    request: u32,
    argument: u64,
}

/// The address, the moment, the length in memory, and the range in the scratch memory.
type Range = (u64, Moment, u64, usize, usize);
const NO_RANGE: Range = (0, Moment::Entry, 0, 0, 0);

/// The memory of an ioctl, in scratch memory.
struct Pieces<'a> {
    ranges: &'a mut [Range],
    count: usize,
    bytes: &'a mut [u8],
    used: usize,
}

impl Pieces<'_> {
    fn take(&mut self, (address, whole): (u64, u64), at: Moment, limit: usize) {
        let Some(row) = self.ranges.get_mut(self.count) else {
            return;
        };
        let free = self.bytes.get_mut(self.used..).unwrap_or(&mut []);
        let len = usize::try_from(whole)
            .unwrap_or(usize::MAX)
            .min(limit)
            .min(free.len());
        let read = memory::read(address, &mut free[..len]);
        *row = (address, at, whole, self.used, read);
        self.count += 1;
        self.used += read;
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = Piece<'_>> {
        let ranges = self.ranges.iter().take(self.count);
        ranges.map(|&(address, at, whole, start, len)| Piece {
            address,
            at,
            whole,
            bytes: self.bytes.get(start..start + len).unwrap_or(&[]),
        })
    }
}

impl Call<'_> {
    #[inline]
    fn run(&self, next: &mut impl FnMut() -> i32) -> i32 {
        let (request, size) = (self.request, Parts::of(self.request).size);
        let vfio;
        let rows = POINTERS.get().map_or(&[][..], Vec::as_slice);
        let row = rows
            .iter()
            .find(|row| row.selector == request as u16 && size >= row.size);
        let pointers: &[Pointer] = match row {
            Some(row) => &row.pointers,
            None if is_vfio(request) => {
                vfio = of_vfio();
                &vfio
            }
            None => &[],
        };
        if pointers.is_empty() {
            return self.sized(pointers, None, next);
        }
        self.session.scratch(self.local, SCRATCH, |bytes| {
            let mut run = |ranges: &mut [Range]| {
                let mut pieces = Pieces {
                    ranges,
                    count: 0,
                    bytes,
                    used: 0,
                };
                self.sized(pointers, Some(&mut pieces), next)
            };
            match request as u16 {
                RDMA => run(&mut [NO_RANGE; RDMA_PIECES]),
                _ => run(&mut [NO_RANGE; PIECES]),
            }
        })
    }

    /// Calls [`around`](Self::around) with buffers of the argument's size: clearing the largest
    /// ones would take longer than the rest.
    #[inline]
    fn sized(
        &self,
        pointers: &[Pointer],
        pieces: Option<&mut Pieces<'_>>,
        next: &mut impl FnMut() -> i32,
    ) -> i32 {
        if argument_size(self.request) <= SMALL {
            self.around::<SMALL>(pointers, pieces, next)
        } else {
            self.around::<MAX_ARGUMENT>(pointers, pieces, next)
        }
    }

    #[inline]
    fn around<const SIZE: usize>(
        &self,
        pointers: &[Pointer],
        mut pieces: Option<&mut Pieces<'_>>,
        next: &mut impl FnMut() -> i32,
    ) -> i32 {
        let mut input = [0; SIZE];
        let mut output = [0; SIZE];
        let before = errno();
        self.session.prefetch(self.local);
        let input = self.read_argument(&mut input);
        if let Some(pieces) = &mut pieces {
            self.follow(pointers, input, Moment::Entry, pieces);
        }
        let effect = if self.session.filter().data {
            data::effect(self.request, input)
        } else {
            Effect::None
        };
        let to = To {
            session: self.session,
            local: self.local,
            author: self.author,
        };
        if effect != Effect::None {
            data::changes(to, effect, Moment::Entry);
        }
        let time_ns = self.session.now();
        set_errno(before);
        let result = next();
        let after = errno();
        let end_ns = self.session.now();
        let output = self.read_argument(&mut output);
        if let Some(pieces) = &mut pieces {
            self.follow(pointers, input, Moment::Exit, pieces);
        }
        set_errno(after);
        let record = IoctlRecord {
            time_ns,
            duration_ns: end_ns.saturating_sub(time_ns).max(1),
            pid: self.author.pid,
            tid: self.author.tid,
            fd: self.fd,
            device: self.file.device(),
            request: self.request,
            argument: self.argument,
            compat: false,
            result: kernel_result(i64::from(result)),
            input: Vec::new(),
            output: Vec::new(),
            memory: Vec::new(),
        };
        let (count, used) = pieces
            .as_ref()
            .map_or((0, 0), |pieces| (pieces.count, pieces.used));
        let device = if record.device.is_some() { 8 } else { 0 };
        let len = raw::ioctl_overhead(count) - 8 + device + input.len() + output.len() + used;
        if let Some(reserved) = self.session.reserve(self.local, len) {
            let mut out = Out(reserved);
            match pieces {
                Some(pieces) => raw::ioctl(&mut out, &record, (input, output), pieces.iter()),
                None => raw::ioctl(&mut out, &record, (input, output), [].into_iter()),
            }
            out.0.publish();
        }
        if effect != Effect::None {
            data::changes(to, effect, Moment::Exit);
            if result >= 0 {
                data::ended(to, effect, output);
            }
        }
        set_errno(after);
        result
    }

    #[inline]
    fn read_argument<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8] {
        let size = if self.argument == 0 {
            0
        } else {
            argument_size(self.request)
        };
        let size = size.min(buffer.len());
        let read = memory::read(self.argument, &mut buffer[..size]);
        &buffer[..read]
    }

    fn follow(&self, pointers: &[Pointer], input: &[u8], at: Moment, pieces: &mut Pieces<'_>) {
        let first = pieces.count;
        for pointer in pointers.iter().filter(|pointer| pointer.at == at) {
            if let Some(target) = pointer.target(self.argument, input) {
                pieces.take(target, at, SCRATCH);
            }
        }
        if self.request as u16 == RDMA {
            for index in first..pieces.count {
                attributes(index, at, pieces);
            }
        }
    }
}

/// The type and number of RDMA ioctls (`RDMA_VERBS_IOCTL`).
const RDMA: u16 = u16::from_be_bytes([0x1b, 1]);

/// Reads the data that the attributes of an RDMA ioctl refer to (`struct ib_uverbs_attr`: id,
/// length, flags, data). Data of up to 8 bytes is in the attribute itself.
fn attributes(index: usize, at: Moment, pieces: &mut Pieces<'_>) {
    const ATTRIBUTE: usize = 16;
    let (_, _, _, start, len) = pieces.ranges[index];
    for place in (start..start + len).step_by(ATTRIBUTE) {
        let Some(bytes) = pieces.bytes.get(place..place + ATTRIBUTE) else {
            return;
        };
        let length = u64::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let address = bytes[8..].try_into().map_or(0, u64::from_le_bytes);
        if address != 0 && length > 8 {
            pieces.take((address, length), at, SCRATCH);
        }
    }
}
