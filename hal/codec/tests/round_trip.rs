//! Requests and answers survive encoding and decoding, and random bytes cause no panic.
#![expect(unsafe_code, reason = "answers can hold descriptors")]

use std::cell::RefCell;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use gaudi_codec::{OwnMemory, UserMemory, Visitor, Wire, decode, serve};
use gaudi_random::Rng;
use gaudi_seam::*;
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::{CsFlags, CsStatus, EngineCommand, HlCsChunk};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::InfoOp;
use gaudi_uapi::memory::{MemFlags, MemOp};
use gaudi_uapi::wait::{WaitCsStatus, WaitCsStatusFlags};
use zerocopy::IntoBytes as _;

/// Formats a request without the addresses and lengths that exist only in its argument.
fn text(request: AnyRequest<'_>) -> String {
    match request {
        AnyRequest::RegisterEvents(_) | AnyRequest::RegisterDmabuf(_) => request.operation().to_string(),
        // Compares the flags that the driver reads.
        AnyRequest::Submit(cs) => format!(
            "{:?}",
            CsRequest {
                flags: cs.cs_flags(),
                ..**cs
            }
        ),
        AnyRequest::MemMapHost(map) => {
            format!(
                "{:?}",
                MapHost {
                    flags: MemFlags(map.flags.0 | MemFlags::USERPTR.0),
                    ..*map
                }
            )
        }
        request => format!("{request:?}"),
    }
}

/// Returns the text and the ioctl of a request.
struct Text;

impl Visitor for Text {
    type Output = (String, Ioctl);

    fn visit<R: Wire>(self, request: R) -> (String, Ioctl) {
        (text(request.view()), R::IOCTL)
    }
}

fn round_trips<R: Wire>(mut request: R) {
    let wanted = text(request.view());
    let args = request.encode();
    assert_eq!(size_of::<R::Args>(), R::IOCTL.args_size(), "{wanted}");
    let seen = decode(R::IOCTL, args.as_bytes(), &OwnMemory, Text);
    assert_eq!(seen, Ok((wanted, R::IOCTL)));
}

fn seeded() -> Rng {
    let seed = gaudi_random::seed();
    println!("seed={seed} ({}={seed} replays it)", gaudi_random::SEED_VARIABLE);
    Rng::of_case(seed, 0)
}

fn fill(rng: &mut Rng, bytes: &mut [u8]) {
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes()[..part.len()]);
    }
}

/// Returns a random number, often one with a special meaning.
fn number(rng: &mut Rng) -> u64 {
    let bits = rng.below(65) as u32;
    rng.next_u64().checked_shr(64 - bits).unwrap_or(0)
}

fn word(rng: &mut Rng) -> u32 {
    number(rng) as u32
}

fn hint(rng: &mut Rng) -> Option<DeviceVa> {
    Some(DeviceVa(number(rng))).filter(|va| va.0 != 0)
}

fn timeout(rng: &mut Rng) -> Duration {
    Duration::from_micros(number(rng))
}

fn chunks(rng: &mut Rng) -> Vec<HlCsChunk> {
    let mut chunks = vec![HlCsChunk::default(); rng.below(5) as usize];
    fill(rng, chunks.as_mut_slice().as_mut_bytes());
    chunks
}

fn submission(rng: &mut Rng) {
    let (execute, restore) = (chunks(rng), chunks(rng));
    let ids: Vec<u32> = (0..rng.below(9)).map(|_| word(rng)).collect();
    let handle = word(rng);
    let command = EngineCommand(word(rng));
    let argument = match rng.below(7) {
        0 => CsArgument::Stage {
            seq: CsSeq(number(rng)),
        },
        1 => CsArgument::Encapsulated { handle },
        2 => CsArgument::ReserveSignals {
            count: handle,
            queue: QueueId(word(rng)),
        },
        3 => CsArgument::UnreserveSignals { handle },
        4 => CsArgument::EngineCores { cores: &ids, command },
        5 => CsArgument::Engines {
            engines: &ids,
            command,
        },
        _ => CsArgument::None,
    };
    let flags = CsFlags::TIMESTAMP | CsFlags::CUSTOM_TIMEOUT | CsFlags::STAGED_SUBMISSION_LAST;
    let mut request = CsRequest {
        flags: CsFlags(word(rng) & (flags.0 | CsFlags::FORCE_RESTORE.0)),
        timeout_s: word(rng),
        argument,
        ..CsRequest::default()
    };
    if request.types() == 0 {
        (request.execute, request.restore) = (&execute, &restore);
    }
    round_trips(&request);
}

#[test]
fn random_requests_round_trip() {
    let mut rng = seeded();
    let event = Event::new().unwrap();
    for _ in 0..gaudi_random::cases(2000) {
        let rng = &mut rng;
        round_trips(CbCreate {
            size: word(rng),
            map_to_device: rng.percent(50),
        });
        round_trips(CbDestroy(CbHandle(number(rng))));
        round_trips(CbQuery {
            handle: CbHandle(number(rng)),
            device_va: rng.percent(50),
        });
        round_trips(MemAlloc {
            size: number(rng),
            page_size: number(rng),
            flags: MemFlags(word(rng)),
        });
        round_trips(MemFree(MemHandle(number(rng))));
        let flags = MemFlags(word(rng) & !MemFlags::USERPTR.0);
        round_trips(MapDevice {
            handle: MemHandle(number(rng)),
            hint: hint(rng),
            flags,
        });
        round_trips(MapHost {
            address: HostVa(number(rng)),
            size: number(rng),
            hint: hint(rng),
            flags,
        });
        round_trips(MemUnmap(DeviceVa(number(rng))));
        round_trips(TsAlloc(word(rng)));
        round_trips(MapBlock(number(rng)));
        round_trips(ExportRequest {
            address: DeviceVa(number(rng)),
            size: number(rng),
            offset: number(rng),
            flags: word(rng),
        });
        round_trips(RegisterDmabuf {
            dmabuf: event.as_fd(),
            len: number(rng),
        });
        round_trips(RegisterEvents(event.as_fd()));
        round_trips(UnregisterEvents);
        submission(rng);
        round_trips(WaitCs {
            seq: CsSeq(number(rng)),
            timeout: timeout(rng),
        });
        let seqs: Vec<CsSeq> = (0..rng.below(33)).map(|_| CsSeq(number(rng))).collect();
        round_trips(WaitMultiCs {
            seqs: &seqs,
            timeout: timeout(rng),
        });
        let counter = CqCounter {
            handle: CbHandle(number(rng)),
            offset: number(rng),
        };
        let id = InterruptId(word(rng) as u16 & 0xfff);
        let user = InterruptWord::User(HostVa(number(rng)));
        let target = number(rng);
        round_trips(&InterruptWait {
            interrupt: id,
            word: if rng.percent(50) {
                user
            } else {
                InterruptWord::KernelCq(counter)
            },
            target,
            timeout: timeout(rng),
        });
        round_trips(&TimestampRegistration {
            interrupt: id,
            counter,
            target,
            buffer: TsHandle(number(rng)),
            index: number(rng),
        });
        let mut output = vec![0; rng.below(40) as usize];
        let op = InfoOp::HW_IP_INFO;
        round_trips(Info {
            request: InfoRequest { op, arg: word(rng) },
            answer: &mut output,
        });
        let input = [7; 24];
        round_trips(DebugRequest {
            op: DebugOp::STM,
            reg_idx: word(rng),
            enable: rng.percent(50),
            input: &input[..rng.below(25) as usize],
            output: &mut output,
        });
        round_trips(NicRequest {
            op: word(rng),
            input: &input,
            output: &mut output,
        });
    }
}

fn answers<R: Wire>(mut request: R, answer: R::Answer)
where
    R::Answer: Copy + PartialEq + std::fmt::Debug,
{
    let mut args = request.encode();
    request.set_answer(answer, &mut args);
    // SAFETY: the answer has no descriptor.
    assert_eq!(unsafe { request.answer(&args) }, Ok(answer), "{}", R::OPERATION);
}

#[test]
fn random_answers_round_trip() {
    let mut rng = seeded();
    for _ in 0..gaudi_random::cases(2000) {
        let rng = &mut rng;
        answers(
            CbCreate {
                size: 1,
                map_to_device: false,
            },
            CbHandle(number(rng)),
        );
        answers(CbDestroy(CbHandle(1)), ());
        let handle = CbHandle(1);
        let va = CbInfo {
            usage_count: 0,
            device_va: Some(DeviceVa(number(rng))),
        };
        answers(
            CbQuery {
                handle,
                device_va: true,
            },
            va,
        );
        answers(
            CbQuery {
                handle,
                device_va: false,
            },
            CbInfo {
                usage_count: word(rng),
                device_va: None,
            },
        );
        answers(
            MemAlloc {
                size: 1,
                page_size: 0,
                flags: MemFlags::NONE,
            },
            MemHandle(number(rng)),
        );
        answers(TsAlloc(1), TsHandle(number(rng)));
        answers(
            MapBlock(1),
            BlockMapping {
                handle: number(rng),
                size: word(rng),
            },
        );
        let submitted = CsAnswer {
            seq: CsSeq(number(rng)),
            status: CsStatus(word(rng)),
            sob_base_addr_offset: word(rng),
            sob_count_before_submission: word(rng) as u16,
        };
        answers(&CsRequest::default(), submitted);
        let status = if rng.percent(50) {
            WaitStatus::Completed
        } else {
            WaitStatus::Busy
        };
        let timestamp_ns = rng.percent(50).then_some(number(rng) as i64);
        let wait = WaitCs {
            seq: CsSeq(1),
            timeout: Duration::ZERO,
        };
        answers(
            wait,
            WaitAnswer {
                status,
                gone: rng.percent(50),
                timestamp_ns,
            },
        );
        let multi = WaitMultiCs {
            seqs: &[],
            timeout: Duration::ZERO,
        };
        answers(
            multi,
            MultiWaitAnswer {
                status,
                completion_map: word(rng),
                timestamp_ns,
            },
        );
        let op = InfoOp::ENGINE_STATUS;
        answers(
            Info {
                request: InfoRequest { op, arg: 0 },
                answer: &mut [],
            },
            word(rng),
        );
    }
}

#[test]
fn multi_wait_without_time_is_gone() {
    let wait = || WaitMultiCs {
        seqs: &[],
        timeout: Duration::ZERO,
    };
    let flags = |status, timestamp_ns| {
        let mut args = wait().encode();
        let completion_map = 1;
        let answer = MultiWaitAnswer {
            status,
            completion_map,
            timestamp_ns,
        };
        wait().set_answer(answer, &mut args);
        args.answer().flags
    };
    assert_eq!(flags(WaitStatus::Completed, None), WaitCsStatusFlags::GONE);
    assert_eq!(
        flags(WaitStatus::Completed, Some(7)),
        WaitCsStatusFlags::TIMESTAMP_VLD
    );
    assert_eq!(flags(WaitStatus::Busy, None), WaitCsStatusFlags::NONE);
}

#[test]
fn ended_waits_report_their_status() {
    let wait = WaitCs {
        seq: CsSeq(3),
        timeout: Duration::ZERO,
    };
    let mut args = { wait }.encode();
    for errno in [Errno::EINTR, Errno::EBUSY] {
        assert_eq!(wait.set_failure(errno, &mut args), Err(errno));
        assert_eq!(args.0[0], 3, "the request is kept");
    }
    for errno in [Errno::ETIMEDOUT, Errno::EIO] {
        assert_eq!(wait.set_failure(errno, &mut args), Err(errno));
        // SAFETY: the answer has no descriptor.
        assert_eq!(unsafe { wait.answer(&args) }, Err(errno), "the status");
    }
    let word = InterruptWord::User(HostVa(8));
    let wait = InterruptWait {
        interrupt: InterruptId(1),
        word,
        target: 1,
        timeout: Duration::ZERO,
    };
    let mut args = { &wait }.encode();
    assert_eq!(
        (&wait).set_failure(Errno::EIO, &mut args),
        Ok(()),
        "only the status differs"
    );
    assert_eq!(args.answer().status, WaitCsStatus::ABORTED);
    let word = InterruptWord::KernelCq(CqCounter {
        handle: CbHandle(1),
        offset: 0,
    });
    let wait = InterruptWait { word, ..wait };
    assert_eq!((&wait).set_failure(Errno::EIO, &mut args), Err(Errno::EIO));
}

#[test]
fn exported_descriptor_round_trips() {
    let request = || ExportRequest {
        address: DeviceVa(0),
        size: 0,
        offset: 0,
        flags: 0,
    };
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let mut args = request().encode();
    request().set_answer(fd, &mut args);
    assert!(args.answer().fd() > 2 && args.0[1..] == [0; 4]);
    // SAFETY: `set_answer` released the descriptor to `args`.
    let fd = unsafe { request().answer(&args) }.unwrap();
    assert_eq!(fd.as_raw_fd(), args.answer().fd());
    assert_eq!(
        request().set_failure(Errno::EINVAL, &mut args),
        Err(Errno::EINVAL)
    );
    // SAFETY: the answer has no descriptor.
    assert_eq!(unsafe { request().answer(&args) }.map(drop), Err(Errno::EBADF));
}

/// Memory of a hostile program: some addresses fault, others hold random bytes. Records the length
/// of the longest access.
struct Hostile(RefCell<(Rng, u64)>);

impl Hostile {
    fn access(&self, len: usize) -> Result<(), Errno> {
        let (rng, most) = &mut *self.0.borrow_mut();
        *most = (*most).max(len as u64);
        if rng.percent(20) {
            Err(Errno::EFAULT)
        } else {
            Ok(())
        }
    }
}

impl UserMemory for Hostile {
    fn read(&self, _: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.access(bytes.len())?;
        fill(&mut self.0.borrow_mut().0, bytes);
        Ok(())
    }

    fn write(&self, _: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.access(bytes.len())
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = seeded();
    let open = || gaudi_hal::open(&"mock:gaudi2?clock=virtual&name=hostile".parse().unwrap()).unwrap();
    let control = gaudi_hal::control(&"mock:gaudi2?clock=virtual&name=hostile".parse().unwrap()).unwrap();
    let mut io = open();
    let memory = Hostile(RefCell::new((rng.clone(), 0)));
    for case in 0..gaudi_random::cases(20_000) {
        if case % 256 == 0 {
            drop(io);
            io = open();
        }
        let mut arg = [0; 64];
        // Words of random size, so that operations, counts and flags are often valid.
        for word in arg.chunks_mut(4) {
            let bits = rng.below(33) as u32;
            let value = (rng.next_u64() as u32).checked_shr(32 - bits).unwrap_or(0);
            word.copy_from_slice(&value.to_le_bytes());
        }
        let ioctl = Ioctl::ALL[rng.below(7) as usize];
        let era = Era::ALL[rng.below(3) as usize];
        let mut request = era.request(ioctl).unwrap_or(rng.next_u64() as u32);
        if rng.percent(5) {
            request = rng.next_u64() as u32;
        }
        if ioctl == Ioctl::Memory {
            // Do not map random ranges of this process to the device, and do not import its
            // descriptors.
            arg[28] &= !(MemFlags::USERPTR.0 as u8);
            if arg[24..28] == MemOp::REG_DMABUF_FD.0.to_le_bytes() {
                continue;
            }
        }
        if ioctl == Ioctl::Info && arg[12..16] == InfoOp::REGISTER_EVENTFD.0.to_le_bytes() {
            continue;
        }
        let len = rng.below(65) as usize;
        let node = if rng.percent(10) { &control } else { &io };
        let before = arg;
        // SAFETY: no argument maps host memory.
        let _answered = unsafe { serve(&**node, request, &mut arg[..len], &memory) };
        assert_eq!(arg[len..], before[len..], "bytes past the argument");
    }
    let most = memory.0.borrow().1;
    println!("longest copy: {most} bytes");
    assert!(most <= 16 << 20, "{most}");
}
