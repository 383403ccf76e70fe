//! [`Tracer`]: selects a tier and runs it.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_capture::Encoded;
use gaudi_capture::record::{Event, Losses, LostCause};

use crate::bpf::{self, Bpf};
use crate::error::{Error, ErrorKind};
use crate::options::{Backend, Options, Summary, Tier};
use crate::process;
use crate::ptrace::{Ptrace, Waiter};
use crate::recorder::Recorder;
use crate::rings::{self, Rings};

/// Tier B: the first and the maximum sleep while the ring is empty.
const SHORT_SLEEP: Duration = Duration::from_micros(500);
const LONG_SLEEP: Duration = Duration::from_millis(8);
/// Tier B: interval between reads of the loss counters while the ring is full of records.
const COUNT_LOST: Duration = Duration::from_millis(20);
/// Tier B: interval between checks for threads whose exit was not recorded.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(500);
/// Interval at which a stop request is repeated until the tracing thread reacts.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(5);

/// Traces a program, or running processes.
///
/// A tracer is bound to the thread that created it, as ptrace(2) requires. With tier C that thread
/// must not have other children whose exit status it needs: [`run`](Self::run) discards them. No
/// other thread of the process may call `waitpid(-1)`, because it could consume the traced
/// program's stops.
#[derive(Debug)]
pub struct Tracer {
    driver: Driver,
    recorder: Recorder,
    /// Tier B and C: the rings of programs that embed this project's library.
    rings: Option<Box<Rings>>,
    child: Option<Child>,
    stop: StopHandle,
    _of_one_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
enum Driver {
    Rings(Box<Rings>),
    Bpf(Box<Bpf>),
    Ptrace(Box<Ptrace>),
}

/// What [`Tracer::run_items`] passes on.
#[derive(Debug)]
pub enum Item<'a> {
    /// An event of tier B or C, or a loss.
    Event(Event),
    /// An event of tier A, in its encoded form.
    Encoded(Encoded<'a>),
    /// No event is ready at this time.
    Idle,
}

/// Ends a run. Can be used from any thread.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    noticed: AtomicBool,
    waiter: Waiter,
}

impl StopHandle {
    /// Ends the tracing: [`Tracer::run`] returns soon, and attached processes continue to run.
    ///
    /// A program spawned by tier C cannot run without its tracer: tracing continues until it exits,
    /// but nothing is recorded.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        // A signal that arrives right before waitpid(2) has no effect, so it is repeated.
        while !self.0.noticed.load(Ordering::Acquire) && self.0.waiter.interrupt() {
            thread::sleep(INTERRUPT_AGAIN);
        }
    }

    fn is_stopped(&self) -> bool {
        let stopped = self.0.stopped.load(Ordering::Acquire);
        if stopped {
            self.0.noticed.store(true, Ordering::Release);
        }
        stopped
    }
}

impl Tracer {
    /// Starts a program under the tracer. Its descendants are traced as well.
    ///
    /// # Errors
    /// - [`ErrorKind::Spawn`]: the program could not be started.
    /// - [`ErrorKind::BpfRefused`] with [`Backend::Bpf`], [`ErrorKind::PtraceRefused`],
    ///   [`ErrorKind::Attach`]: the tier cannot run on this system. [`Backend::Auto`] returns the
    ///   error of the tier that it tried last.
    /// - [`ErrorKind::Unsupported`], [`ErrorKind::System`].
    pub fn spawn(mut command: Command, options: &Options) -> Result<Self, Error> {
        let mut recorder = Recorder::new(options);
        if options.backend == Backend::Preload {
            let (rings, child) = Rings::spawn(command, options)?;
            return Ok(Self::with(Driver::Rings(Box::new(rings)), recorder, Some(child)));
        }
        let rings = Rings::beside(&mut command, options)?;
        let (driver, child) = match Self::bpf(options)? {
            Some(bpf) => {
                let follow = |pid| {
                    bpf.follow(pid)?;
                    recorder.found(pid, pid, u64::from(pid), None);
                    Ok(())
                };
                let child = crate::spawn::spawn(command, || Ok(()), follow)?;
                (Driver::Bpf(bpf), child)
            }
            None => {
                let (ptrace, child) = Ptrace::spawn(command, options, &mut recorder)?;
                (Driver::Ptrace(Box::new(ptrace)), child)
            }
        };
        let tracer = Self::with(driver, recorder, Some(child));
        Ok(Self {
            rings: Some(Box::new(rings)),
            ..tracer
        })
    }

    /// Traces running processes, and their descendants from now on.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); [`ErrorKind::Attach`] for the first process that cannot be
    /// traced.
    pub fn attach(pids: &[u32], options: &Options) -> Result<Self, Error> {
        let mut recorder = Recorder::new(options);
        let driver = match Self::bpf(options)? {
            Some(bpf) => {
                for &pid in pids {
                    bpf.follow_process(pid, &mut recorder)?;
                }
                Driver::Bpf(bpf)
            }
            None => Driver::Ptrace(Box::new(Ptrace::attach(pids, options, &mut recorder)?)),
        };
        Ok(Self::with(driver, recorder, None))
    }

    /// Loads tier B if the options select it.
    fn bpf(options: &Options) -> Result<Option<Box<Bpf>>, Error> {
        match options.backend {
            Backend::Ptrace => Ok(None),
            Backend::Preload => Err(Error::new(
                ErrorKind::Unsupported("attaching to a running process"),
                None,
            )),
            Backend::Bpf if options.command_buffers.is_some() => Err(Error::new(
                ErrorKind::Unsupported("reading command buffers"),
                None,
            )),
            Backend::Bpf => Bpf::new(options).map(|bpf| Some(Box::new(bpf))),
            Backend::Auto if options.command_buffers.is_some() => Ok(None),
            Backend::Auto => Ok(Bpf::new(options).ok().map(Box::new)),
        }
    }

    fn with(driver: Driver, recorder: Recorder, child: Option<Child>) -> Self {
        let stop = StopHandle::default();
        Self {
            driver,
            recorder,
            rings: None,
            child,
            stop,
            _of_one_thread: PhantomData,
        }
    }

    /// Returns the tier in use.
    pub fn tier(&self) -> Tier {
        match self.driver {
            Driver::Rings(_) => Tier::Preload,
            Driver::Bpf(_) => Tier::Bpf,
            Driver::Ptrace(_) => Tier::Ptrace,
        }
    }

    /// Returns the spawned program, for access to its pipes. Do not wait for it: the tracer does.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Returns a handle that ends the run from another thread, for example on SIGINT.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Passes events to `on_event`, in the order of their ends, until every traced process has
    /// ended, `on_event` breaks, or [`StopHandle::stop`] is called.
    ///
    /// # Errors
    /// [`ErrorKind::System`].
    pub fn run(self, mut on_event: impl FnMut(Event) -> ControlFlow<()>) -> Result<Summary, Error> {
        self.run_items(|item| match item {
            Item::Event(event) => on_event(event),
            Item::Encoded(event) => on_event(event.decode()),
            Item::Idle => ControlFlow::Continue(()),
        })
    }

    /// As [`run`](Self::run), without decoding the events of tier A. Passes [`Item::Idle`] when all
    /// events so far were passed on.
    ///
    /// # Errors
    /// [`ErrorKind::System`].
    pub fn run_items(mut self, on_item: impl FnMut(Item<'_>) -> ControlFlow<()>) -> Result<Summary, Error> {
        let mut sink = Sink {
            on_item,
            stop: self.stop.clone(),
            events: 0,
            go_on: true,
        };
        let recorder = &mut self.recorder;
        let mut beside = Beside::new(self.rings.take());
        let mut summary = Summary {
            tier: Tier::Ptrace,
            events: 0,
            ioctls: 0,
            lost: Losses::default(),
            cut: 0,
            unreadable: 0,
            not_followed: 0,
            corrupt: Vec::new(),
            status: None,
        };
        let failed = |error| Error::new(ErrorKind::System("waitpid(2)"), error);
        match &mut self.driver {
            Driver::Rings(rings) => {
                let child = self.child.as_mut();
                let status = run_rings(rings, child, &mut sink).map_err(failed)?;
                return Ok(Summary {
                    tier: Tier::Preload,
                    events: rings.events,
                    ioctls: rings.ioctls,
                    lost: rings.lost,
                    cut: rings.cut,
                    unreadable: rings.unreadable,
                    corrupt: std::mem::take(&mut rings.corrupt),
                    status,
                    ..summary
                });
            }
            Driver::Bpf(bpf) => {
                summary.tier = Tier::Bpf;
                let all_ended = run_bpf(bpf, recorder, |recorder| {
                    beside.pass(recorder, &mut sink);
                    sink.goes_on()
                });
                summary.status = match &mut self.child {
                    // The exit event can arrive shortly before wait(2) reports the exit.
                    Some(child) if all_ended => child.wait().map(Some),
                    Some(child) => child.try_wait(),
                    None => Ok(None),
                }
                .map_err(failed)?;
            }
            Driver::Ptrace(ptrace) => {
                let handle = self.stop.clone();
                let waiting = handle.0.waiter.enter();
                let _waiting = waiting.map_err(|errno| Error::system("sigaction(2)", errno))?;
                let _ticker = beside.rings.is_some().then(|| Ticker::start(&handle));
                ptrace.run(recorder, |recorder| {
                    beside.pass(recorder, &mut sink);
                    sink.goes_on()
                })?;
                beside.pass(recorder, &mut sink);
                summary.not_followed = ptrace.not_followed;
                summary.status = ptrace.status.map(|status| ExitStatus::from_raw(status as i32));
            }
        }
        let rings = beside.finish(&mut sink);
        let mut lost = self.recorder.lost;
        for cause in LostCause::ALL {
            lost.add(cause, rings.as_ref().map_or(0, |rings| rings.lost.of(cause)));
        }
        let of_rings = |count: fn(&Rings) -> u64| rings.as_ref().map_or(0, |rings| count(rings));
        Ok(Summary {
            events: sink.events + of_rings(|rings| rings.events),
            ioctls: self.recorder.ioctls + of_rings(|rings| rings.ioctls),
            lost,
            cut: self.recorder.cut + of_rings(|rings| rings.cut),
            unreadable: self.recorder.unreadable + of_rings(|rings| rings.unreadable),
            corrupt: rings.map_or_else(Vec::new, |rings| rings.corrupt),
            ..summary
        })
    }
}

/// The rings beside another tier.
struct Beside {
    rings: Option<Box<Rings>>,
    read: Instant,
    /// The next call of [`pass`](Self::pass) has all events of the tier up to this time.
    complete: u64,
}

impl Beside {
    fn new(rings: Option<Box<Rings>>) -> Self {
        Self {
            rings,
            read: Instant::now(),
            complete: 0,
        }
    }

    /// Passes on the recorder's events and the records of the rings. After the exit or the exec of
    /// a process its descriptors are closed, so the records that precede it are passed on before.
    ///
    /// Otherwise the rings are not read if they were just before: tier C calls this at each stop.
    fn pass<F: FnMut(Item<'_>) -> ControlFlow<()>>(&mut self, recorder: &mut Recorder, sink: &mut Sink<F>) {
        let now = process::now_ns();
        let mut is_idle = recorder.events.is_empty();
        for event in recorder.events.drain(..) {
            if let (Event::Process(process), Some(rings)) = (&event, &mut self.rings) {
                rings.read_all(process.time_ns, |item| sink.ring_item(item));
            }
            sink.event(event);
        }
        if let Some(rings) = self.rings.as_mut().filter(|_| self.read.elapsed() > SHORT_SLEEP) {
            is_idle &= rings.read(self.complete, |item| sink.ring_item(item)) == 0;
            self.read = Instant::now();
        }
        if is_idle {
            sink.item(Item::Idle);
        }
        self.complete = now;
    }

    fn finish<F: FnMut(Item<'_>) -> ControlFlow<()>>(mut self, sink: &mut Sink<F>) -> Option<Box<Rings>> {
        if let Some(rings) = &mut self.rings {
            rings.finish(|item| sink.ring_item(item));
        }
        self.rings
    }
}

/// Wakes the tracing thread of tier C, so that it reads the rings while the program makes no stop.
struct Ticker {
    ended: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Ticker {
    fn start(handle: &StopHandle) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (end, handle) = (Arc::clone(&ended), handle.clone());
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                thread::sleep(LONG_SLEEP);
                handle.0.waiter.interrupt();
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Passes events to the caller.
struct Sink<F> {
    on_item: F,
    stop: StopHandle,
    events: u64,
    go_on: bool,
}

impl<F: FnMut(Item<'_>) -> ControlFlow<()>> Sink<F> {
    fn item(&mut self, item: Item<'_>) {
        if self.go_on {
            self.go_on = (self.on_item)(item).is_continue();
        }
    }

    /// Passes on an event of the recorder.
    fn event(&mut self, event: Event) {
        if self.go_on {
            self.events += u64::from(!matches!(event, Event::Lost { .. }));
            self.item(Item::Event(event));
        }
    }

    fn goes_on(&self) -> bool {
        self.go_on && !self.stop.is_stopped()
    }
}

/// Reads the rings until every process of the session has ended, or the caller ends the run.
/// Returns the status of the spawned program.
fn run_rings<F: FnMut(Item<'_>) -> ControlFlow<()>>(
    rings: &mut Rings,
    mut child: Option<&mut Child>,
    sink: &mut Sink<F>,
) -> std::io::Result<Option<ExitStatus>> {
    let mut sleep = SHORT_SLEEP;
    let mut status = None;
    loop {
        let read = rings.read(u64::MAX, |item| sink.ring_item(item));
        if !sink.goes_on() {
            break;
        }
        if read > 0 {
            sleep = SHORT_SLEEP;
            // To wait for more costs less than to read each record when it is written: the
            // processors pass the memory to each other.
            if read < rings::MANY {
                thread::sleep(sleep);
            }
            continue;
        }
        sink.item(Item::Idle);
        if let (None, Some(child)) = (status, child.as_mut()) {
            status = child.try_wait()?;
            if status.is_some() {
                // Its last records precede its exit.
                continue;
            }
        }
        // A process that has just ended made its last records in a ring.
        if status.is_some() && !rings.has_owner() && !rings.has_process() && !rings.has_owner() {
            break;
        }
        thread::sleep(sleep);
        sleep = (sleep * 2).min(LONG_SLEEP);
    }
    rings.finish(|item| sink.ring_item(item));
    sink.item(Item::Idle);
    Ok(status)
}

impl<F: FnMut(Item<'_>) -> ControlFlow<()>> Sink<F> {
    fn ring_item(&mut self, item: rings::Item<'_>) -> bool {
        self.item(match item {
            rings::Item::Event(event) => Item::Encoded(event),
            rings::Item::Lost(cause, count) => Item::Event(Event::Lost {
                time_ns: process::now_ns(),
                count,
                cause,
            }),
        });
        self.go_on
    }
}

/// Reads the ring until every traced thread has exited (returns true) or `pass` returns false.
fn run_bpf(bpf: &mut Bpf, recorder: &mut Recorder, mut pass: impl FnMut(&mut Recorder) -> bool) -> bool {
    let mut sleep = SHORT_SLEEP;
    let mut looked = Instant::now();
    let mut counted = Instant::now();
    let mut stopping = false;
    loop {
        let records = bpf.read(recorder);
        if records < bpf::BATCH || counted.elapsed() > COUNT_LOST {
            counted = Instant::now();
            bpf.count_lost(recorder);
        }
        let go_on = pass(recorder);
        if !go_on && !stopping {
            // Records that are already in the ring are still read.
            bpf.detach();
            stopping = true;
            continue;
        }
        if records > 0 {
            sleep = SHORT_SLEEP;
            if records < bpf::BATCH && !stopping {
                // As in `run_rings`.
                thread::sleep(sleep);
            }
            continue;
        }
        let all_ended = recorder.is_idle() && !bpf.follows_cgroup();
        if stopping || all_ended {
            return all_ended;
        }
        if looked.elapsed() > LOOK_FOR_DEAD {
            looked = Instant::now();
            let dead: Vec<u32> = recorder.live().filter(|&tid| !process::is_alive(tid)).collect();
            // The ring was empty, so the exit record of a dead thread was either read or lost.
            let late = bpf.read(recorder);
            for tid in dead.into_iter().filter(|_| late == 0) {
                recorder.forget(tid);
            }
            continue;
        }
        thread::sleep(sleep);
        sleep = (sleep * 2).min(LONG_SLEEP);
    }
}
