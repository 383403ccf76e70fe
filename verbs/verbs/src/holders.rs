//! [`Holders`]: names of the objects that hold a parent, for the error of a refused close.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{Errno, Error, ErrorKind};
use gaudi_sys::fork::OwnerProcess;

/// The holders of one object. Changed when children are made and closed, never on a hot path.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    list: Mutex<Vec<(u64, String)>>,
    next: AtomicU64,
}

/// Entry of one child, removed on drop.
#[derive(Debug)]
pub(crate) struct Hold {
    holders: Arc<Holders>,
    id: u64,
    owner: OwnerProcess,
}

impl Holders {
    fn list(&self) -> MutexGuard<'_, Vec<(u64, String)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(self: &Arc<Self>, name: String) -> Hold {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.list().push((id, name));
        Hold {
            holders: self.clone(),
            id,
            owner: OwnerProcess::current(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.list().len()
    }

    /// `InUse` (`EBUSY`, as the kernel would say) with the holders' names.
    pub(crate) fn in_use(
        &self,
        operation: &'static str,
        what: &str,
        clones: usize,
        help: &'static str,
    ) -> Error {
        const SHOWN: usize = 8;
        let list = self.list();
        let mut names: Vec<String> = list.iter().take(SHOWN).map(|(_, name)| name.clone()).collect();
        if list.len() > SHOWN {
            names.push(format!("{} more", list.len() - SHOWN));
        }
        match clones {
            0 => {}
            1 => names.push("a clone of it".to_owned()),
            count => names.push(format!("{count} clones of it")),
        }
        Error::new(ErrorKind::InUse, operation)
            .with_errno(Errno::EBUSY)
            .because(format!("{what} is held by {}", names.join(", ")))
            .helped_by(help)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            // Another thread may have held the lock at the fork and does not exist in this child.
            return;
        }
        let mut list = self.holders.list();
        if let Some(place) = list.iter().position(|(id, _)| *id == self.id) {
            list.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "fork(2) is what is tested")]

    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn fork_child_drops_guard_of_locked_list() {
        let holders = Arc::new(Holders::default());
        let hold = holders.hold("a child".to_owned());
        let list = holders.list();
        // SAFETY: the child only drops and leaves by _exit; the alarm ends it where it hangs.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: as said above.
                unsafe { nix::libc::alarm(10) };
                drop(hold);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { nix::libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(
                    waitpid(child, None),
                    Ok(WaitStatus::Exited(child, 0)),
                    "the drop ends"
                );
            }
        }
        drop(list);
        assert_eq!(holders.len(), 1, "the parent's is untouched");
        drop(hold);
        assert_eq!(holders.len(), 0);
    }
}
