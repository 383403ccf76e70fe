//! [`Tracer`]: selects a tier and runs it.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_capture::record::Event;

use crate::bpf::Bpf;
use crate::error::{Error, ErrorKind};
use crate::options::{Backend, Options, Summary, Tier};
use crate::process;
use crate::ptrace::{Ptrace, Waiter};
use crate::recorder::Recorder;

/// Tier B: the first and the maximum sleep while the ring is empty.
const SHORT_SLEEP: Duration = Duration::from_micros(500);
const LONG_SLEEP: Duration = Duration::from_millis(8);
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
    child: Option<Child>,
    stop: StopHandle,
    events: u64,
    _of_one_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
enum Driver {
    Bpf(Box<Bpf>),
    Ptrace(Box<Ptrace>),
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
    pub fn spawn(command: Command, options: &Options) -> Result<Self, Error> {
        let mut recorder = Recorder::new(options);
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
        Ok(Self::with(driver, recorder, Some(child)))
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
            child,
            stop,
            events: 0,
            _of_one_thread: PhantomData,
        }
    }

    /// Returns the tier in use.
    pub fn tier(&self) -> Tier {
        match self.driver {
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
    pub fn run(mut self, mut on_event: impl FnMut(Event) -> ControlFlow<()>) -> Result<Summary, Error> {
        let stop = self.stop.clone();
        let (events, recorder) = (&mut self.events, &mut self.recorder);
        let mut go_on = true;
        let mut pass = |recorder: &mut Recorder, go_on: &mut bool| {
            for event in recorder.events.drain(..) {
                if *go_on {
                    *events += u64::from(!matches!(event, Event::Lost { .. }));
                    *go_on = on_event(event).is_continue();
                }
            }
            *go_on && !stop.is_stopped()
        };
        let mut not_followed = 0;
        let tier;
        let status = match &mut self.driver {
            Driver::Bpf(bpf) => {
                tier = Tier::Bpf;
                let all_ended = run_bpf(bpf, recorder, |recorder| pass(recorder, &mut go_on));
                let status = match &mut self.child {
                    // The exit event can arrive shortly before wait(2) reports the exit.
                    Some(child) if all_ended => child.wait().map(Some),
                    Some(child) => child.try_wait(),
                    None => Ok(None),
                };
                status.map_err(|error| Error::new(ErrorKind::System("waitpid(2)"), error))?
            }
            Driver::Ptrace(ptrace) => {
                tier = Tier::Ptrace;
                let handle = self.stop.clone();
                let waiting = handle.0.waiter.enter();
                let _waiting = waiting.map_err(|errno| Error::system("sigaction(2)", errno))?;
                ptrace.run(recorder, |recorder| pass(recorder, &mut go_on))?;
                pass(recorder, &mut go_on);
                not_followed = ptrace.not_followed;
                ptrace.status.map(|status| ExitStatus::from_raw(status as i32))
            }
        };
        Ok(Summary {
            tier,
            events: self.events,
            ioctls: self.recorder.ioctls,
            lost: self.recorder.lost,
            cut: self.recorder.cut,
            unreadable: self.recorder.unreadable,
            not_followed,
            status,
        })
    }
}

/// Reads the ring until every traced thread has exited (returns true) or `pass` returns false.
fn run_bpf(bpf: &mut Bpf, recorder: &mut Recorder, mut pass: impl FnMut(&mut Recorder) -> bool) -> bool {
    let mut sleep = SHORT_SLEEP;
    let mut looked = Instant::now();
    let mut stopping = false;
    loop {
        let records = bpf.read(recorder);
        bpf.count_lost(recorder);
        let go_on = pass(recorder);
        if !go_on && !stopping {
            // Records that are already in the ring are still read.
            bpf.detach();
            stopping = true;
            continue;
        }
        if records > 0 {
            sleep = SHORT_SLEEP;
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
