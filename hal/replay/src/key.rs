//! [`Key`]: what two requests have in common if a replay answers one with the other.

use gaudi_codec::argument::encode;
use gaudi_codec::{UserMemory, Visitor, Wire, decode};
use gaudi_seam::{AnyRequest, CsArgument, CsRequest, Errno, InterruptWord, Operation};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, HlCsArgs, HlCsChunk};
use gaudi_uapi::info::{HlInfoArgs, InfoOp};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};
use gaudi_uapi::memory::{HlMemArgs, MemOp};
use zerocopy::{FromZeros as _, IntoBytes as _};

use gaudi_capture::record::{IoctlRecord, Memory, Moment};

/// The bits of a handle that the driver finds an object by (common/memory_mgr.c). The others are
/// its type.
const NUMBER: u64 = 0xffff_ffff << 12;
/// The type of a block's handle (habanalabs.h:HL_MMAP_TYPE_BLOCK, shifted by a page).
const TYPE_BLOCK: u64 = 0x4 << 59;
/// The type bits of a handle (habanalabs.h:HL_MMAP_TYPE_MASK).
const TYPE_MASK: u64 = 0x1f << 59;
/// Where blocks lie in a replay's file, behind the buffers.
const BLOCKS: u64 = 1 << 44;
/// The end of the places of blocks.
const BLOCKS_END: u64 = 1 << 45;
/// Bytes in a replay's file: a program that maps a block itself stays inside, however long the
/// block is.
pub(crate) const FILE_LEN: u64 = BLOCKS_END + (1 << 33);

/// The operation and its arguments as words. Addresses of the program, descriptors and timeouts are
/// left out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key(Box<[u64]>);

impl Key {
    fn new(operation: Operation, words: impl IntoIterator<Item = u64>) -> Self {
        Self([operation as u64].into_iter().chain(words).collect())
    }

    /// Bytes of memory.
    pub(crate) fn size(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }

    /// Whether the requests have the same operation.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.0.first() == other.0.first()
    }

    /// Whether a later request may get the same answer again: a query or a wait.
    pub(crate) fn is_repeatable(&self) -> bool {
        const REPEATABLE: [Operation; 5] = [
            Operation::Info,
            Operation::CbInfo,
            Operation::WaitCs,
            Operation::WaitMultiCs,
            Operation::WaitInterrupt,
        ];
        REPEATABLE
            .iter()
            .any(|&one| self.0.first() == Some(&(one as u64)))
    }

    /// Whether it asks which events have occurred.
    pub(crate) fn is_events(&self) -> bool {
        self.is_info() && self.0.get(1) == Some(&InfoOp::GET_EVENTS.0.into())
    }

    /// Whether it is a query for information, which any node answers alike.
    pub(crate) fn is_info(&self) -> bool {
        self.0.first() == Some(&(Operation::Info as u64))
    }

    pub(crate) fn is_mmap(&self) -> bool {
        self.0.first() == Some(&(Operation::Mmap as u64))
    }

    pub(crate) fn mmap(offset: u64, len: u64) -> Self {
        let pages = len.div_ceil(gaudi_sys::PAGE);
        Self::new(Operation::Mmap, [place(offset), pages])
    }

    /// The key of a request of this process.
    pub(crate) fn of(request: AnyRequest<'_>) -> Self {
        use AnyRequest as Any;
        let operation = request.operation();
        let key = |words: &[u64]| Self::new(operation, words.iter().copied());
        match request {
            Any::Info(info) => key(&[info.request.op.0.into(), info.request.arg.into()]),
            Any::CbCreate(create) => key(&[create.size.into(), create.map_to_device.into()]),
            Any::CbDestroy(destroy) => key(&[destroy.0.0 & NUMBER]),
            Any::CbInfo(query) => key(&[query.handle.0 & NUMBER, query.device_va.into()]),
            // The driver reads no list of two types of submission.
            Any::Submit(cs) if cs.types().count_ones() > 1 => {
                key(&[cs.cs_flags().0.into(), cs.timeout_s.into(), MALFORMED])
            }
            Any::Submit(cs) => {
                let mut words = vec![cs.cs_flags().0.into(), cs.timeout_s.into(), cs.argument.word()];
                match cs.argument {
                    CsArgument::EngineCores { cores: ids, command }
                    | CsArgument::Engines {
                        engines: ids,
                        command,
                    } => {
                        words.push(command.0.into());
                        words.extend(ids.iter().map(|&id| u64::from(id)));
                    }
                    _ => {}
                }
                push_chunks(&mut words, cs);
                key(&words)
            }
            Any::WaitCs(wait) => key(&[wait.seq.0]),
            // The driver does not read a list that is too long.
            Any::WaitMultiCs(wait) if wait.seqs.len() > HL_WAIT_MULTI_CS_LIST_MAX_LEN => key(&[TOO_MANY]),
            Any::WaitMultiCs(wait) => Self::new(operation, wait.seqs.iter().map(|seq| seq.0)),
            Any::WaitInterrupt(wait) => match wait.word {
                InterruptWord::User(_) => key(&[0, wait.interrupt.0.into(), wait.target]),
                InterruptWord::KernelCq(counter) => key(&[
                    1,
                    wait.interrupt.0.into(),
                    wait.target,
                    counter.handle.0 & NUMBER,
                    counter.offset,
                ]),
            },
            Any::RegisterTimestamp(registration) => key(&[
                registration.interrupt.0.into(),
                registration.counter.handle.0 & NUMBER,
                registration.counter.offset,
                registration.target,
                registration.buffer.0 & NUMBER,
                registration.index,
            ]),
            Any::MemAlloc(alloc) => key(&[alloc.size, alloc.page_size, alloc.flags.0.into()]),
            Any::MemFree(free) => key(&[free.0.0]),
            Any::MemMapDevice(map) => key(&[
                map.handle.0,
                map.hint.map_or(0, |hint| hint.0),
                map.flags.0.into(),
            ]),
            Any::MemMapHost(map) => key(&[map.size, map.hint.map_or(0, |hint| hint.0), map.flags.0.into()]),
            Any::MemUnmap(unmap) => key(&[unmap.0.0]),
            Any::TsAlloc(alloc) => key(&[alloc.0.into()]),
            Any::MapBlock(block) => key(&[block.0]),
            Any::ExportDmabuf(export) => {
                key(&[export.address.0, export.size, export.offset, export.flags.into()])
            }
            Any::RegisterDmabuf(register) => key(&[register.len]),
            // The driver reads as much of the input as it knows: the rest can be anything.
            Any::Debug(debug) => key(&[debug.op.0.into(), debug.reg_idx.into(), debug.enable.into()]),
            Any::Nic(nic) => {
                let input = nic.input.iter().map(|&byte| u64::from(byte));
                Self::new(operation, [u64::from(nic.op)].into_iter().chain(input))
            }
            Any::Mmap(mmap) => Self::mmap(mmap.offset, mmap.whole_pages()),
            Any::RegisterEvents(_) | Any::UnregisterEvents(_) => key(&[]),
        }
    }

    /// The key of a recorded ioctl. `None` if it does not have the form of a request.
    pub(crate) fn of_record(ioctl: Ioctl, record: &IoctlRecord) -> Option<Self> {
        match ioctl {
            Ioctl::Info => {
                let mut args = HlInfoArgs::new_zeroed();
                fill(args.as_mut_bytes(), &record.input);
                let words: &[u64] = &[args.op.0.into(), args.arg.into()];
                // The descriptor is not compared.
                Some(match args.op {
                    InfoOp::REGISTER_EVENTFD => Self::new(Operation::RegisterEvents, []),
                    InfoOp::UNREGISTER_EVENTFD => Self::new(Operation::UnregisterEvents, []),
                    _ => Self::new(Operation::Info, words.iter().copied()),
                })
            }
            Ioctl::Memory => {
                let mut args = HlMemArgs::new_zeroed();
                fill(args.as_mut_bytes(), &record.input);
                let input = args.request();
                if input.op == MemOp::REG_DMABUF_FD {
                    return Some(Self::new(Operation::RegisterDmabuf, [input.arg[1]]));
                }
                decode(ioctl, &record.input, &Recorded(&record.memory), ToKey).ok()
            }
            Ioctl::Cs => {
                let mut args = HlCsArgs::new_zeroed();
                fill(args.as_mut_bytes(), &record.input);
                let input = args.request();
                let by_flags = CsRequest {
                    flags: input.cs_flags,
                    timeout_s: input.timeout,
                    ..CsRequest::default()
                };
                match by_flags.types().count_ones() {
                    0 | 1 => decode(ioctl, &record.input, &Recorded(&record.memory), ToKey).ok(),
                    _ => Some(Self::of(AnyRequest::Submit(&&by_flags))),
                }
            }
            _ => decode(ioctl, &record.input, &Recorded(&record.memory), ToKey).ok(),
        }
    }
}

/// In place of the lists of a submission that the driver rejects by its flags.
const MALFORMED: u64 = u64::MAX - 2;
/// In place of a list that is longer than the driver reads.
const TOO_MANY: u64 = u64::MAX - 1;

/// Appends the chunks that the driver reads (common/command_submission.c:hl_cs_ioctl).
fn push_chunks(words: &mut Vec<u64>, cs: &CsRequest<'_>) {
    let most = match (cs.is_sync_stream(), cs.types().count_ones()) {
        (true, 1) => 1,
        (false, 0) => HL_MAX_JOBS_PER_CS as usize,
        _ => return,
    };
    // The chunk of a wait has the address of a list.
    let is_wait = cs.cs_flags().0 & (CsFlags::WAIT.0 | CsFlags::COLLECTIVE_WAIT.0) != 0;
    for (chunks, is_wait) in [(cs.execute, is_wait), (cs.restore, false)] {
        words.push(u64::MAX);
        if chunks.len() > most {
            words.push(TOO_MANY);
            continue;
        }
        for chunk in chunks {
            push_chunk(words, chunk, is_wait);
        }
    }
}

fn push_chunk(words: &mut Vec<u64>, chunk: &HlCsChunk, is_wait: bool) {
    words.extend([
        if is_wait { 0 } else { chunk.cb_handle },
        chunk.queue_index.into(),
        chunk.cb_size.into(),
        chunk.cs_chunk_flags.0.into(),
        chunk.collective_engine_id.into(),
    ]);
}

fn fill(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// The place of a buffer or a block in the file of a replay.
pub(crate) fn place(handle: u64) -> u64 {
    let number = handle & NUMBER;
    match handle & TYPE_MASK {
        TYPE_BLOCK => BLOCKS | number,
        // The handle of a program on a replay: see `program_handle`.
        _ if handle & BLOCKS != 0 && handle < BLOCKS_END => BLOCKS | number,
        _ => number,
    }
}

struct ToKey;

impl Visitor for ToKey {
    type Output = Key;

    fn visit<R: Wire>(self, request: R) -> Key {
        Key::of(request.view())
    }
}

/// The memory that a record has from before its call.
pub(crate) struct Recorded<'a>(pub(crate) &'a [Memory]);

impl UserMemory for Recorded<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let found = self.0.iter().find_map(|piece| {
            let from = usize::try_from(address.checked_sub(piece.address)?).ok()?;
            let end = from.checked_add(bytes.len())?;
            (piece.at == Moment::Entry)
                .then_some(&*piece.bytes)
                .and_then(|have| have.get(from..end))
        });
        bytes.copy_from_slice(found.ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
}

/// Returns a request of this process as a record, to print it like a recorded one.
pub(crate) fn as_record(request: AnyRequest<'_>) -> Option<IoctlRecord> {
    let (ioctl, input) = encode(request)?;
    let memory = match request {
        AnyRequest::Submit(cs) => vec![Memory {
            address: gaudi_codec::address(cs.execute),
            at: Moment::Entry,
            bytes: cs.execute.as_bytes().to_vec(),
            whole: size_of_val(cs.execute) as u64,
        }],
        _ => Vec::new(),
    };
    Some(IoctlRecord {
        fd: -1,
        request: gaudi_uapi::Era::AccelDrm.request(ioctl)?,
        output: input.clone(),
        input,
        memory,
        ..IoctlRecord::default()
    })
}
