//! Tests of the invariants: defects planted at the seam, one at a time, each of which a run must
//! find.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gaudi_faults::{Case, DEVICE, Invariant, World};
use gaudi_seam::{
    Answer, AnyAnswer, AnyRequest, CsAnswer, CsRequest, CsSeq, Errno, Error, ErrorKind, KernelIo, Layer,
    Operation, Request, Result, SharedIo, WaitAnswer, WaitCs, WaitStatus,
};
use gaudi_sys::RawMapping;

/// Bytes of a packet that copies.
const PACKET: u32 = 24;
/// Cases that look for a defect at most.
const CASES: u64 = 20_000;

/// A layer with a defect.
struct Planted {
    inner: SharedIo,
    defect: Defect,
    seen: AtomicU64,
    last: AtomicU64,
    failed_map: AtomicU64,
    kept: Mutex<Vec<(u64, u64)>>,
    /// Whether the device was in reset, for every node of the world.
    was_reset: Arc<AtomicBool>,
}

/// Where the defect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Library,
    Driver,
}

macro_rules! defects {
    ($($name:ident $place:ident $invariant:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Defect {
            $($name,)*
        }

        /// Each defect, its place, and the invariant that it breaks in the first case found.
        const ALL: &[(Defect, Place, Invariant)] = &[
            $((Defect::$name, Place::$place, Invariant::$invariant),)*
        ];
    };
}

defects! {
    UnmapForgotten Library Leaks,
    FreeForgotten Library Leaks,
    BufferNotDestroyed Library Leaks,
    BufferCreatedTwice Library Leaks,
    AllocatedTwice Library Leaks,
    LeakOnErrorPath Library Leaks,
    StaleCacheEntry Library Leaks,
    HostMemoryLeaked Library HostMemory,
    UnmappedTwice Library Misuse,
    FreedTwice Library Misuse,
    FreedBeforeUnmap Library Misuse,
    RefusedMapUsed Library TruthfulErrors,
    CompletionLost Library TimeBudget,
    CompletionEarly Library EndsOnce,
    CompletionMisdirected Library EndsOnce,
    EintrIsCompletion Library EndsOnce,
    SubmittedTwice Library EndsOnce,
    RefusalSwallowed Library TruthfulErrors,
    ResetNotSeen Library TruthfulErrors,
    OtherErrno Library TruthfulErrors,
    WindowShort Library Leaks,
    PacketSkipped Library ForeignBytes,
    TailSkipped Library TruthfulErrors,
    EintrIsError Library Leaks,
    TimeoutIsCompletion Library EndsOnce,
    AllocatedThenFailed Library TruthfulErrors,
    WrongQueue Library EndsOnce,
    DestroyedTwice Library Misuse,
    PanicOnRefusal Library Panics,
    ResetIsCompletion Library TruthfulErrors,
    DriverFailsAlloc Driver TruthfulErrors,
    DriverMapsTwice Driver Leaks,
    DriverSkipsHead Driver ForeignBytes,
    DriverStaysReset Driver Reset,
    DriverKeepsMapping Driver Leaks,
    DriverKeepsBuffer Driver Leaks,
    DriverSaysDone Driver ForeignBytes,
    DriverSkipsTail Driver TruthfulErrors,
    DriverForgetsEnd Driver EndsOnce,
    FullQueueIsFailure Library TruthfulErrors,
    DriverLosesCompletion Driver TimeBudget,
    DriverRepeatsNumber Driver EndsOnce,
}

const BUSY: WaitAnswer = WaitAnswer {
    status: WaitStatus::Busy,
    gone: false,
    timestamp_ns: None,
};

impl Planted {
    fn over(inner: SharedIo, defect: Defect, was_reset: &Arc<AtomicBool>) -> SharedIo {
        Arc::new(Self {
            inner,
            defect,
            seen: AtomicU64::new(0),
            last: AtomicU64::new(1),
            failed_map: AtomicU64::new(0),
            kept: Mutex::default(),
            was_reset: Arc::clone(was_reset),
        })
    }

    /// Every third time.
    fn strikes(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed) % 3 == 1
    }

    fn last(&self) -> CsAnswer {
        CsAnswer {
            seq: CsSeq(self.last.load(Ordering::Relaxed)),
            status: Default::default(),
            sob_base_addr_offset: 0,
            sob_count_before_submission: 0,
        }
    }

    /// Submits the chunk with other bytes.
    fn cut<R: Request>(&self, submit: &CsRequest<'_>, from: u32, less: u32) -> Option<Result<R::Answer>> {
        let [chunk] = submit.execute else { return None };
        if chunk.cb_size < PACKET * 2 {
            return None;
        }
        let mut chunk = *chunk;
        chunk.cb_handle += u64::from(from);
        chunk.cb_size -= less;
        let cut = CsRequest {
            execute: &[chunk],
            ..*submit
        };
        Some(self.inner.submit(&cut).map(R::reply))
    }
}

impl Layer for Planted {
    type Below = dyn KernelIo;

    fn below(&self) -> &dyn KernelIo {
        &*self.inner
    }

    fn around<R: Request>(
        &self,
        request: &mut R,
        mut next: impl FnMut(&mut R) -> Result<R::Answer>,
    ) -> Result<R::Answer> {
        use Defect as D;
        let skipped = || Ok(R::reply(()));
        match (self.defect, R::OPERATION) {
            (D::UnmapForgotten | D::DriverKeepsMapping, Operation::MemUnmap) if self.strikes() => skipped(),
            (D::FreeForgotten, Operation::MemFree) => skipped(),
            (D::BufferNotDestroyed | D::DriverKeepsBuffer, Operation::CbDestroy) => skipped(),
            (D::BufferCreatedTwice, Operation::CbCreate) | (D::AllocatedTwice, Operation::MemAlloc) => {
                let _ = next(request);
                next(request)
            }
            (D::LeakOnErrorPath, Operation::MemMapDevice) => {
                let answer = next(request);
                self.failed_map.store(answer.is_err().into(), Ordering::Relaxed);
                answer
            }
            (D::LeakOnErrorPath, Operation::MemFree) if self.failed_map.load(Ordering::Relaxed) == 1 => {
                skipped()
            }
            (D::StaleCacheEntry, Operation::MemMapHost) => {
                let AnyRequest::MemMapHost(map) = request.view() else {
                    unreachable!("the operation is MemMapHost")
                };
                let address = map.address.0;
                let answer = next(request)?;
                if let AnyAnswer::DeviceVa(va) = answer.view() {
                    self.kept.lock().expect("no panic").push((va.0, address));
                }
                Ok(answer)
            }
            (D::StaleCacheEntry, Operation::MemUnmap) => {
                let AnyRequest::MemUnmap(unmap) = request.view() else {
                    unreachable!("the operation is MemUnmap")
                };
                let kept = self.kept.lock().expect("no panic");
                match kept.iter().any(|&(va, _)| va == unmap.0.0) {
                    true => skipped(),
                    false => next(request),
                }
            }
            (D::HostMemoryLeaked, Operation::CbCreate) => {
                std::mem::forget(RawMapping::anonymous(4096, true));
                next(request)
            }
            (D::UnmappedTwice, Operation::MemUnmap) | (D::FreedTwice, Operation::MemFree) => {
                let answer = next(request);
                if answer.is_ok() {
                    let _ = next(request);
                }
                answer
            }
            (D::FreedBeforeUnmap, Operation::MemUnmap) => {
                let _ = self.inner.mem_free(gaudi_seam::MemHandle(1));
                next(request)
            }
            (D::RefusedMapUsed, Operation::MemMapHost) => {
                Ok(next(request).unwrap_or_else(|_| R::reply(gaudi_seam::DeviceVa(0xdead_0000))))
            }
            (D::CompletionLost | D::DriverLosesCompletion, Operation::WaitCs) => {
                let AnyRequest::WaitCs(&WaitCs { seq, .. }) = request.view() else {
                    unreachable!("the operation is WaitCs")
                };
                let answer = next(request)?;
                Ok(if seq.0 % 3 == 2 { R::reply(BUSY) } else { answer })
            }
            (D::CompletionEarly | D::DriverSaysDone, Operation::WaitCs) => {
                let _ = next(request)?;
                Ok(R::reply(WaitAnswer {
                    status: WaitStatus::Completed,
                    ..BUSY
                }))
            }
            (D::EintrIsCompletion, Operation::WaitCs) => match next(request) {
                Err(error) if error.errno() == Some(Errno::EINTR) => Ok(R::reply(WaitAnswer {
                    status: WaitStatus::Completed,
                    ..BUSY
                })),
                answer => answer,
            },
            (D::CompletionMisdirected, Operation::WaitCs) => {
                let AnyRequest::WaitCs(&WaitCs { seq, timeout }) = request.view() else {
                    unreachable!("the operation is WaitCs")
                };
                let other = CsSeq(seq.0.saturating_sub(1).max(1));
                self.inner.wait_cs(other, timeout).map(R::reply)
            }
            (D::DriverForgetsEnd, Operation::WaitCs) => {
                let answer = next(request)?;
                match answer.view() {
                    AnyAnswer::Wait(wait) if wait.status == WaitStatus::Completed && self.strikes() => {
                        Ok(R::reply(BUSY))
                    }
                    _ => Ok(answer),
                }
            }
            (D::SubmittedTwice, Operation::Submit) if self.strikes() => {
                let _ = next(request);
                next(request)
            }
            (D::RefusalSwallowed, Operation::Submit) => {
                let answer = next(request);
                if let Ok(AnyAnswer::Cs(taken)) = answer.as_ref().map(|answer| answer.view()) {
                    self.last.store(taken.seq.0, Ordering::Relaxed);
                }
                let is_full = |error: &Error| error.errno() == Some(Errno::EAGAIN);
                match answer {
                    Err(error) if !is_full(&error) => Ok(R::reply(self.last())),
                    answer => answer,
                }
            }
            (D::FullQueueIsFailure, Operation::Submit) => {
                next(request).map_err(|error| match error.errno() {
                    Some(Errno::EAGAIN) => Error::from_errno(R::OPERATION.kernel_name(), Errno::EIO),
                    _ => error,
                })
            }
            (D::DriverRepeatsNumber, Operation::Submit) => {
                let answer = next(request);
                if let Ok(AnyAnswer::Cs(taken)) = answer.as_ref().map(|answer| answer.view()) {
                    if self.strikes() {
                        return Ok(R::reply(self.last()));
                    }
                    self.last.store(taken.seq.0, Ordering::Relaxed);
                }
                answer
            }
            (D::ResetNotSeen, Operation::Submit) => {
                let answer = next(request);
                if let Ok(AnyAnswer::Cs(taken)) = answer.as_ref().map(|answer| answer.view()) {
                    self.last.store(taken.seq.0, Ordering::Relaxed);
                }
                match answer {
                    Err(error) if error.errno() == Some(Errno::EBUSY) => Ok(R::reply(self.last())),
                    answer => answer,
                }
            }
            (D::OtherErrno, operation) => next(request).map_err(|error| match error.errno() {
                Some(Errno::EAGAIN | Errno::EINTR) | None => error,
                Some(_) => Error::from_errno(operation.kernel_name(), Errno::EXDEV),
            }),
            (D::WindowShort, Operation::MemMapHost) => {
                let AnyRequest::MemMapHost(&map) = request.view() else {
                    unreachable!("the operation is MemMapHost")
                };
                let mut map = map;
                if map.size > 1 {
                    map.size /= 2;
                }
                #[expect(unsafe_code, reason = "a part of what the caller promised")]
                // SAFETY: the caller promises the whole range, and this is a part of it.
                let answer = unsafe { self.inner.mem_map_host(map) };
                answer.map(R::reply)
            }
            (D::EintrIsError, _) => next(request).map_err(|error| match error.errno() {
                Some(Errno::EINTR) => Error::from_errno(R::OPERATION.kernel_name(), Errno::EIO),
                _ => error,
            }),
            (D::TimeoutIsCompletion, Operation::WaitCs) => {
                let answer = next(request)?;
                match answer.view() {
                    AnyAnswer::Wait(wait) if wait.status == WaitStatus::Busy => Ok(R::reply(WaitAnswer {
                        status: WaitStatus::Completed,
                        ..BUSY
                    })),
                    _ => Ok(answer),
                }
            }
            (D::ResetIsCompletion, Operation::WaitCs) => match next(request) {
                Err(error) if matches!(error.errno(), Some(Errno::EIO | Errno::EBUSY | Errno::ENODEV)) => {
                    Ok(R::reply(WaitAnswer {
                        status: WaitStatus::Completed,
                        ..BUSY
                    }))
                }
                answer => answer,
            },
            (D::AllocatedThenFailed | D::DriverFailsAlloc, Operation::MemAlloc) if self.strikes() => {
                if self.defect == D::AllocatedThenFailed {
                    let _ = next(request);
                }
                Err(Error::from_errno(R::OPERATION.kernel_name(), Errno::EPERM))
            }
            (D::WrongQueue, Operation::Submit) => {
                let AnyRequest::Submit(submit) = request.view() else {
                    unreachable!("the operation is Submit")
                };
                let [chunk] = submit.execute else {
                    return next(request);
                };
                let mut chunk = *chunk;
                if self.strikes() {
                    // The other PCI engine executes it.
                    chunk.queue_index = 4 - chunk.queue_index.min(4);
                }
                let moved = CsRequest {
                    execute: &[chunk],
                    ..**submit
                };
                self.inner.submit(&moved).map(R::reply)
            }
            (D::DestroyedTwice, Operation::CbDestroy) => {
                let answer = next(request);
                if answer.is_ok() {
                    let _ = next(request);
                }
                answer
            }
            (D::PanicOnRefusal, Operation::MemMapHost) => {
                let answer = next(request);
                assert!(answer.is_ok(), "the mapping is refused");
                answer
            }
            (D::DriverMapsTwice, Operation::MemMapDevice) => {
                let _ = next(request);
                next(request)
            }
            (D::DriverStaysReset, _) => {
                let answer = next(request);
                let is_lost = |error: &Error| error.kind() == ErrorKind::DeviceLost;
                if answer.as_ref().is_err_and(is_lost) {
                    self.was_reset.store(true, Ordering::Relaxed);
                }
                match answer {
                    Ok(_)
                        if self.was_reset.load(Ordering::Relaxed) && R::OPERATION == Operation::MemAlloc =>
                    {
                        Err(Error::from_errno(R::OPERATION.kernel_name(), Errno::ENODEV))
                    }
                    answer => answer,
                }
            }
            (D::DriverSkipsHead, Operation::Submit) => {
                let AnyRequest::Submit(submit) = request.view() else {
                    unreachable!("the operation is Submit")
                };
                match self.cut::<R>(submit, PACKET, PACKET) {
                    Some(answer) => answer,
                    None => next(request),
                }
            }
            (D::PacketSkipped, Operation::Submit) => {
                let AnyRequest::Submit(submit) = request.view() else {
                    unreachable!("the operation is Submit")
                };
                match self.cut::<R>(submit, PACKET, PACKET) {
                    Some(answer) => answer,
                    None => next(request),
                }
            }
            (D::TailSkipped | D::DriverSkipsTail, Operation::Submit) => {
                let AnyRequest::Submit(submit) = request.view() else {
                    unreachable!("the operation is Submit")
                };
                match self.cut::<R>(submit, 0, PACKET) {
                    Some(answer) => answer,
                    None => next(request),
                }
            }
            _ => next(request),
        }
    }
}

/// The world with a defect. Work that ends late shows more of them.
fn world(defect: Defect, place: Place) -> World {
    let spec = format!("{DEVICE}&order=stepped").parse().expect("a spec");
    let world = World::new(&spec).expect("made");
    let was_reset = Arc::default();
    let wrap = move |io| Planted::over(io, defect, &was_reset);
    match place {
        Place::Library => world.with_code_layer(wrap),
        Place::Driver => world.with_driver_layer(wrap),
    }
}

#[test]
fn every_planted_defect_is_found() {
    let mut times = Vec::new();
    let mut missed = Vec::new();
    for &(defect, place, invariant) in ALL {
        let mut world = world(defect, place);
        let begin = Instant::now();
        let found = (0..CASES).find_map(|number| {
            let case = Case::generate(7, number);
            let outcome = case.run(&mut world).ok()?;
            let violation = outcome.violations.first()?.clone();
            Some((case, outcome, violation))
        });
        let Some((case, outcome, violation)) = found else {
            missed.push(format!("{defect:?}: no violation"));
            continue;
        };
        let took = begin.elapsed();
        times.push(took);
        let number = case.number;
        let (smallest, _) = case.reduce(outcome, &mut world);
        println!(
            "{defect:?}: case {number}, {:.3} s, {} operations and {} rules: {violation}",
            took.as_secs_f64(),
            smallest.ops.len(),
            smallest.plan.rules.len()
        );
        if violation.invariant != invariant {
            missed.push(format!("{defect:?}: expected {invariant}, found {violation}"));
        }
    }
    times.sort_unstable();
    println!(
        "{} of {} found, median {:?}",
        times.len(),
        ALL.len(),
        times[times.len() / 2]
    );
    assert!(missed.is_empty(), "{missed:#?}");
    assert!(
        times.iter().all(|&time| time < Duration::from_secs(60)),
        "{times:?}"
    );
}

#[test]
fn switched_off_invariant_is_not_reported() {
    let world = world(Defect::UnmapForgotten, Place::Library);
    let mut world = world.without(Invariant::Leaks).without(Invariant::ForeignBytes);
    for number in 0..50 {
        let outcome = Case::generate(7, number)
            .run(&mut world)
            .expect("the device opens");
        let seen = outcome.violations.iter().map(|violation| violation.invariant);
        assert!(seen.clone().all(|seen| seen != Invariant::Leaks), "{number}");
    }
}
