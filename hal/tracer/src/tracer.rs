//! [`Tracer`]: chooses a tier and runs it.

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

/// How long tier B sleeps when nothing comes: the first time, and at most.
const SHORT_SLEEP: Duration = Duration::from_micros(500);
const LONG_SLEEP: Duration = Duration::from_millis(8);
/// How often tier B looks for threads whose end it missed.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(500);
/// How often a stop is repeated until the tracing thread notices.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(5);

/// Traces a program, or running processes.
///
/// It belongs to the thread that made it, as ptrace(2) demands. With tier C that thread must have
/// no other children that it wants to wait for: [`run`](Self::run) discards their ends. No other
/// thread of the process may wait for any child (`waitpid(-1)`): it can take the traced program's
/// stops.
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

/// Ends a run from another thread.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    noticed: AtomicBool,
    waiter: Waiter,
}

impl StopHandle {
    /// Ends the tracing: [`Tracer::run`] returns soon, and processes that it attached to run on.
    ///
    /// A program that tier C spawned cannot run without its tracer: it is followed to its end, and
    /// nothing more is recorded.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        // A signal that comes right before the wait is lost, so it is repeated.
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
    /// Starts a program under the tracer. Everything that it starts is traced too.
    ///
    /// # Errors
    /// - [`ErrorKind::Spawn`]: the program does not start.
    /// - [`ErrorKind::BpfRefused`] with [`Backend::Bpf`], [`ErrorKind::PtraceRefused`],
    ///   [`ErrorKind::Attach`]: the tier cannot run here. With [`Backend::Auto`] it is the last
    ///   tier's error.
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

    /// Traces running processes, and everything that they start from now on.
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

    /// Loads tier B if it is to be used.
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

    /// The tier that was chosen.
    pub fn tier(&self) -> Tier {
        match self.driver {
            Driver::Bpf(_) => Tier::Bpf,
            Driver::Ptrace(_) => Tier::Ptrace,
        }
    }

    /// The spawned program, to take its pipes. Do not wait for it: the tracer does.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Ends the run from another thread, for example when SIGINT comes.
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
                    // The event of its end comes a moment before wait(2) has it.
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

/// Reads the ring until every followed thread has ended, which it returns, or `pass` has enough.
fn run_bpf(bpf: &mut Bpf, recorder: &mut Recorder, mut pass: impl FnMut(&mut Recorder) -> bool) -> bool {
    let mut sleep = SHORT_SLEEP;
    let mut looked = Instant::now();
    let mut stopping = false;
    loop {
        let records = bpf.read(recorder);
        bpf.count_lost(recorder);
        let go_on = pass(recorder);
        if !go_on && !stopping {
            // What was recorded until now is still read.
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
            // The ring was empty, so the end of a dead thread is in it by now, or was lost.
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
