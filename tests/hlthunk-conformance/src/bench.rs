//! [`Bench`]: the device that cases share, and its required state after each.

use std::collections::BTreeSet;
use std::env;
use std::ffi::c_int;
use std::fs;
use std::ptr;
use std::time::{Duration, Instant};

use gaudi_conformance::{Failure, Verdict, equal, holds};
use nix::errno::Errno;

use crate::answer::{number, ok};
use crate::card::Card;
use crate::library::Library;
use crate::types::{EnginesIdleInfo, HwIpInfo, name};

/// The variable that selects the library's device.
pub const DEVICE: &str = "GAUDI_DEVICE";

/// What the library runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The mock, selected by [`DEVICE`].
    Mock,
    /// The kernel's driver.
    Driver,
}

/// How long the driver may take to end the last user's session: it resets the chip.
const RESET: Duration = Duration::from_secs(60);

/// A device that is opened once for many cases: the driver resets the chip at every close.
#[derive(Debug)]
pub struct Bench {
    /// The library.
    pub(crate) hl: &'static Library,
    /// What it runs on.
    pub(crate) backend: Backend,
    fd: Option<c_int>,
    /// This process's descriptors before the case.
    descriptors: BTreeSet<String>,
    /// Whether the mock has signalled an eventfd.
    has_signalled: bool,
}

/// Returns this process's descriptors with their files, without the directory's own.
pub(crate) fn descriptors() -> BTreeSet<String> {
    let listed = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some(format!("{:?} {}", entry.file_name(), target.display()))
    };
    // The directory itself is open meanwhile.
    listed
        .filter_map(link)
        .filter(|row| !row.ends_with("/fd"))
        .collect()
}

impl Bench {
    /// Creates a bench; the first case opens the device.
    pub fn new(hl: &'static Library) -> Self {
        let backend = match env::var_os(DEVICE) {
            Some(_) => Backend::Mock,
            None => Backend::Driver,
        };
        Self {
            hl,
            backend,
            fd: None,
            descriptors: BTreeSet::new(),
            has_signalled: false,
        }
    }

    /// Whether the library runs on the mock.
    pub(crate) fn is_mock(&self) -> bool {
        self.backend == Backend::Mock
    }

    /// Returns the open device. Opens it if it is closed.
    pub(crate) fn card(&mut self) -> Result<Card, Failure> {
        let fd = match self.fd {
            Some(fd) => fd,
            None => self.open_patiently(|hl| hl.open(name::DONT_CARE, ptr::null()))?,
        };
        self.fd = Some(fd);
        Ok(Card { hl: self.hl, fd })
    }

    /// Calls an open function until the last user's session has ended.
    pub(crate) fn open_patiently(&self, open: impl Fn(&Library) -> c_int) -> Result<c_int, Failure> {
        let begin = Instant::now();
        loop {
            let fd = open(self.hl);
            let is_busy = [Errno::EBUSY, Errno::EAGAIN].contains(&Errno::last());
            if fd >= 0 || !is_busy || self.is_mock() || begin.elapsed() > RESET {
                return number("opening the device", fd);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens the control node of the device.
    pub(crate) fn control(&self) -> Result<Control, Failure> {
        let fd = self.hl.open_control(0, ptr::null());
        Ok(Control {
            card: Card {
                hl: self.hl,
                fd: number("hlthunk_open_control", fd)?,
            },
        })
    }

    /// Closes the device.
    pub(crate) fn close(&mut self) -> Verdict {
        match self.fd.take() {
            Some(fd) => ok("hlthunk_close", self.hl.close(fd)),
            None => Ok(()),
        }
    }

    /// Takes the descriptor out: the case closes it.
    pub(crate) fn take(&mut self) -> Result<Card, Failure> {
        let card = self.card()?;
        self.fd = None;
        Ok(card)
    }

    /// Closes and opens.
    pub(crate) fn reopen(&mut self) -> Result<Card, Failure> {
        self.close()?;
        self.card()
    }

    /// Opens the device and notes what the process has.
    pub(crate) fn begin(&mut self) -> Verdict {
        self.card()?;
        self.descriptors = self.others();
        Ok(())
    }

    /// The descriptors beside the device's own, which a case may close and open anew.
    fn others(&self) -> BTreeSet<String> {
        let own = self.fd.map(|fd| format!("\"{fd}\" "));
        let mut all = descriptors();
        all.retain(|row| own.as_ref().is_none_or(|own| !row.starts_with(own)));
        all
    }

    /// Checks that a case left nothing and that the device works.
    pub(crate) fn ledger(&mut self) -> Verdict {
        let card = self.card()?;
        equal(
            "the device's status after the case",
            self.hl.get_device_status_info(card.fd),
            0,
        )?;
        let usage = card.usage()?;
        equal(
            "device memory that the case left allocated",
            usage.ctx_dram_mem,
            0,
        )?;
        let mut ip = HwIpInfo::default();
        ok(
            "hlthunk_get_hw_ip_info",
            self.hl.get_hw_ip_info(card.fd, Some(&mut ip)),
        )?;
        equal(
            "free device memory after the case",
            usage.dram_free_mem,
            ip.dram_size,
        )?;
        let mut idle = EnginesIdleInfo::default();
        ok(
            "hlthunk_get_busy_engines_mask",
            self.hl.get_busy_engines_mask(card.fd, Some(&mut idle)),
        )?;
        holds("all engines are idle after the case", idle.is_idle == 1, idle)?;
        // The library notices at an open that a mock's node was closed by close(2).
        drop(self.control()?);
        let new: Vec<_> = self.others().difference(&self.descriptors).cloned().collect();
        let is_own = new.is_empty() || self.is_mock_file(&new);
        holds("the case left no descriptor open", is_own, new)
    }

    /// Whether these are the mock's own: a mock that a case opened anew has other numbers, and the
    /// first eventfd that it signals needs another for the process's life (gaudi-sys's aio.rs).
    fn is_mock_file(&mut self, new: &[String]) -> bool {
        let is_event = |row: &&String| row.ends_with("anon_inode:[eventfd]");
        let kept = usize::from(!self.has_signalled && new.iter().any(|row| is_event(&row)));
        let is_own = self.is_mock() && self.others().len() <= self.descriptors.len() + kept;
        self.has_signalled |= is_own && kept == 1;
        is_own
    }
}

/// An open control node, closed on drop.
#[derive(Debug)]
pub(crate) struct Control {
    /// The library and the descriptor.
    pub(crate) card: Card,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.card.hl.close(self.card.fd);
    }
}
