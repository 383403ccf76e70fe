//! [`Supervisor`]: runs a program and answers its calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_hal::DeviceSpec;
use gaudi_seam::{BackendSpec, KernelIoExt as _};
use gaudi_sys::lock;
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::errno::Errno;

use crate::error::Error;
use crate::files::{Files, identity_of};
use crate::filter::{Call, call_of};
use crate::nodes::Nodes;
use crate::notify::{Listener, Reply, Request};
use crate::tree::{Described, Tree};

/// Maximum number of threads that serve calls. A wait for a completion occupies one, so the number
/// of the program's threads is a limit, too.
const MOST_WORKERS: usize = 1 << 14;
/// How long the last idle thread delays a wait before the wait ends with `EINTR`, after which the
/// program repeats it.
const RETRY: Duration = Duration::from_millis(1);

/// How long calls whose threads were killed may still run after the last process has ended.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// Runs a program whose devices are answered by device specs.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    shared: Arc<Shared>,
}

struct Shared {
    listener: Listener,
    nodes: Nodes,
    files: Files,
    workers: AtomicUsize,
    idle: AtomicUsize,
    /// Held by the thread that receives: the kernel would wake all of them for each call.
    turn: Mutex<()>,
    /// Whether queries do not wait: no layer delays them.
    is_quick: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// Queries what the paths of a device show.
fn described(spec: &DeviceSpec) -> Result<Described, Error> {
    let io = gaudi_hal::describer(spec).map_err(Error::Device)?;
    // A recording may lack the query: then the ids are unknown.
    let info = io.query::<HlInfoHwIpInfo>().ok();
    Ok(Described {
        device_id: info.as_ref().map_or(0, |info| info.device_id),
        module_id: info.as_ref().map_or(0, |info| info.module_id),
    })
}

impl Supervisor {
    /// Starts `command` with a device for each spec: the first is `/dev/accel/accel0`.
    ///
    /// The program is killed when the calling thread ends.
    ///
    /// # Errors
    /// - [`Error::Device`]: a spec does not open.
    /// - [`Error::Spawn`]: the program could not be started.
    /// - [`Error::System`].
    pub fn spawn(command: Command, specs: Vec<DeviceSpec>) -> Result<Self, Error> {
        let devices: Vec<Described> = specs.iter().map(described).collect::<Result<_, _>>()?;
        let (child, listener) = crate::spawn::spawn(command)?;
        let is_quick = specs.iter().all(|spec| {
            spec.layers.is_empty() && matches!(spec.backend, BackendSpec::Mock(_) | BackendSpec::Replay(_))
        });
        let shared = Arc::new(Shared {
            listener,
            nodes: Nodes::new(specs),
            files: Files::new(Tree::new(&devices)),
            workers: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            turn: Mutex::default(),
            is_quick,
        });
        Shared::add_worker(&shared).map_err(Error::Spawn)?;
        Ok(Self { child, shared })
    }

    /// Returns the program, for access to its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the program and its descendants have ended. Returns the program's status.
    ///
    /// # Errors
    /// [`Error::System`]: wait(2) failed.
    pub fn wait(mut self) -> Result<ExitStatus, Error> {
        let failed = |error: std::io::Error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::System("waitpid(2)", errno)
        };
        let status = self.child.wait().map_err(failed)?;
        // The last worker ends with the last process that has the filter. A wait for the device
        // whose thread was killed can take until its timeout, and has no receiver.
        let mut ended = None;
        while self.shared.workers.load(Ordering::Acquire) > 0 {
            thread::park_timeout(Duration::from_millis(5));
            if self.shared.listener.has_ended()
                && ended.get_or_insert_with(Instant::now).elapsed() > LAST_CALLS
            {
                break;
            }
        }
        Ok(status)
    }
}

/// Whether a call can wait for the device.
fn is_wait(request: &Request) -> bool {
    call_of(request.number) == Some(Call::Ioctl)
        && Ioctl::of_request(request.arguments[1] as u32) == Some(Ioctl::WaitCs)
}

/// Whether a call is the driver's INFO ioctl. Its file may be another one than a device.
fn is_query(request: &Request) -> bool {
    call_of(request.number) == Some(Call::Ioctl)
        && Ioctl::of_request(request.arguments[1] as u32) == Some(Ioctl::Info)
}

/// Returns the reply to a call. A defect of this process ends the call with `EIO`: the thread
/// continues to serve the program.
fn of_panic(answer: impl FnOnce() -> Reply) -> Reply {
    catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
        tracing::error!("a call of the program caused a panic, and fails with EIO");
        Reply::Errno(Errno::EIO)
    })
}

impl Shared {
    fn add_worker(this: &Arc<Self>) -> std::io::Result<()> {
        this.workers.fetch_add(1, Ordering::AcqRel);
        this.idle.fetch_add(1, Ordering::AcqRel);
        let shared = Arc::clone(this);
        let made = thread::Builder::new()
            .name("gaudi-run".to_owned())
            .spawn(move || shared.work());
        if made.is_err() {
            this.workers.fetch_sub(1, Ordering::AcqRel);
            this.idle.fetch_sub(1, Ordering::AcqRel);
        }
        made.map(drop)
    }

    /// Starts another thread, which must be ready while this one waits in a call. Returns whether
    /// one is.
    fn has_another(this: &Arc<Self>) -> bool {
        if this.workers.load(Ordering::Acquire) >= MOST_WORKERS {
            return false;
        }
        let added = Self::add_worker(this);
        if let Err(error) = &added {
            tracing::warn!(%error, "no further thread serves the program");
        }
        added.is_ok()
    }

    /// Receives the next call that can take long. Answers the others without waking another thread.
    /// `None` if no process has the filter.
    fn receive(&self) -> Option<Request> {
        let _turn = lock(&self.turn);
        loop {
            match self.listener.receive() {
                Ok(Some(request)) if self.is_quick && is_query(&request) => {
                    let reply = of_panic(|| self.answer(&request));
                    self.listener.reply(&request, reply);
                }
                Ok(request) => return request,
                Err(errno) => {
                    tracing::error!(%errno, "cannot receive the program's calls");
                    return None;
                }
            }
        }
    }

    /// Serves calls until no process has the filter.
    fn work(self: Arc<Self>) {
        while let Some(request) = self.receive() {
            let is_last = self.idle.fetch_sub(1, Ordering::AcqRel) == 1;
            let reply = if is_last && !Self::has_another(&self) && is_wait(&request) {
                thread::sleep(RETRY);
                Reply::Errno(Errno::EINTR)
            } else {
                of_panic(|| self.answer(&request))
            };
            self.listener.reply(&request, reply);
            self.idle.fetch_add(1, Ordering::AcqRel);
        }
        self.idle.fetch_sub(1, Ordering::AcqRel);
        self.workers.fetch_sub(1, Ordering::AcqRel);
    }

    fn answer(&self, request: &Request) -> Reply {
        match call_of(request.number) {
            Some(Call::Ioctl) => {
                let node = identity_of(request.tid, request.arguments[0] as i32)
                    .and_then(|identity| self.nodes.find(identity));
                match node {
                    Some(node) => node.ioctl(&self.listener, request),
                    None => Reply::Continue,
                }
            }
            Some(call) => self.files.answer(call, &self.nodes, &self.listener, request),
            None => Reply::Continue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_call_ends_with_eio() {
        assert_eq!(of_panic(|| Reply::Value(3)), Reply::Value(3));
        let reply = of_panic(|| panic!("a defect of the test"));
        assert_eq!(reply, Reply::Errno(Errno::EIO));
    }
}
