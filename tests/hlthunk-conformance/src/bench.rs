//! [`Bench`]: the device that the cases share, and the check of its state after each case.

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
use crate::case::Case;
use crate::library::Library;
use crate::types::{EnginesIdleInfo, HwIpInfo, name};

/// The environment variable that selects the library's device.
pub const DEVICE: &str = "GAUDI_DEVICE";

/// The backend of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The mock, selected by [`DEVICE`].
    Mock,
    /// The kernel driver.
    Driver,
}

/// The group of the cases whose child alone opens the device.
const CHILD_GROUP: &str = "c";

/// Timeout for the end of the last user's session, in which the driver resets the chip.
const RESET: Duration = Duration::from_secs(60);

/// A device that stays open for many cases, because the driver resets the chip at every close.
#[derive(Debug)]
pub struct Bench {
    /// The library.
    pub(crate) hl: &'static Library,
    /// The library's backend.
    pub(crate) backend: Backend,
    fd: Option<c_int>,
    /// Whether a case has used the open device: another open would cost a reset.
    is_used: bool,
    /// The descriptors of this process before the case.
    descriptors: BTreeSet<String>,
    /// Whether the mock has signalled an eventfd.
    has_signalled: bool,
}

/// Returns this process's descriptors and their files, except for the directory used to list them.
pub(crate) fn descriptors() -> BTreeSet<String> {
    let listed = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some(format!("{:?} {}", entry.file_name(), target.display()))
    };
    // Skip the descriptor of the directory itself.
    listed
        .filter_map(link)
        .filter(|row| !row.ends_with("/fd"))
        .collect()
}

impl Bench {
    /// Creates a bench. The first case opens the device.
    pub fn new(hl: &'static Library) -> Self {
        let backend = match env::var_os(DEVICE) {
            Some(_) => Backend::Mock,
            None => Backend::Driver,
        };
        Self {
            hl,
            backend,
            fd: None,
            is_used: false,
            descriptors: BTreeSet::new(),
            has_signalled: false,
        }
    }

    /// Returns whether the library runs on the mock.
    pub(crate) fn is_mock(&self) -> bool {
        self.backend == Backend::Mock
    }

    /// Returns the open device. Opens it if it is closed.
    pub(crate) fn card(&mut self) -> Result<Card, Failure> {
        match self.fd {
            Some(fd) => Ok(Card { hl: self.hl, fd }),
            None => self.open_with(|hl| hl.open(name::DONT_CARE, ptr::null())),
        }
    }

    /// Closes the device, opens it with `open`, and keeps it open for the next cases.
    pub(crate) fn open_with(&mut self, open: impl Fn(&Library) -> c_int) -> Result<Card, Failure> {
        self.close()?;
        let fd = self.open_patiently(open)?;
        Ok(self.adopt(fd))
    }

    /// Keeps a descriptor that a case opened for the next cases.
    pub(crate) fn adopt(&mut self, fd: c_int) -> Card {
        (self.fd, self.is_used) = (Some(fd), false);
        Card { hl: self.hl, fd }
    }

    /// Returns a device that no case has used since it was opened.
    pub(crate) fn unused(&mut self) -> Result<Card, Failure> {
        match self.is_used {
            true => self.reopen(),
            false => self.card(),
        }
    }

    /// Retries an open function until the last user's session has ended.
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

    /// Transfers the descriptor to the case, which closes it.
    pub(crate) fn take(&mut self) -> Result<Card, Failure> {
        let card = self.card()?;
        self.fd = None;
        Ok(card)
    }

    /// Closes and reopens the device.
    pub(crate) fn reopen(&mut self) -> Result<Card, Failure> {
        self.close()?;
        self.card()
    }

    /// Records the process's descriptors. Opens the device, unless only a child of the case does.
    pub(crate) fn begin(&mut self, case: &Case) -> Verdict {
        if case.group != CHILD_GROUP {
            self.card()?;
        }
        self.descriptors = self.others();
        Ok(())
    }

    /// Returns the descriptors except the device's own, which a case may close and reopen.
    fn others(&self) -> BTreeSet<String> {
        let own = self.fd.map(|fd| format!("\"{fd}\" "));
        let mut all = descriptors();
        all.retain(|row| own.as_ref().is_none_or(|own| !row.starts_with(own)));
        all
    }

    /// Checks that a case released all its resources and that the device works.
    ///
    /// A device that only a child of the case opened stays closed, so that the child of the next
    /// case opens it without another reset: the next case that opens it shows that it works.
    pub(crate) fn ledger(&mut self, case: &Case) -> Verdict {
        self.is_used = self.fd.is_some();
        if case.group == CHILD_GROUP && self.fd.is_none() {
            return self.no_new_descriptor();
        }
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
        // The library detects at the next open that close(2) closed a mock's node.
        drop(self.control()?);
        self.no_new_descriptor()
    }

    fn no_new_descriptor(&mut self) -> Verdict {
        let new: Vec<_> = self.others().difference(&self.descriptors).cloned().collect();
        let is_own = new.is_empty() || self.is_mock_file(&new);
        holds("the case left no descriptor open", is_own, new)
    }

    /// Returns whether the new descriptors belong to the mock: reopening a mock changes its
    /// numbers, and the first eventfd that it signals keeps one more open until exit (gaudi-sys's
    /// aio.rs).
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
