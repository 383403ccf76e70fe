//! [`Holders`]: names of the objects that hold a parent, for the error of a refused close.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gaudi_seam::{CloseError, Errno, Error, ErrorKind};
use gaudi_sys::fork::OwnerProcess;
use gaudi_sys::lock;

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
    pub(crate) fn hold(self: &Arc<Self>, name: String) -> Hold {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.list).push((id, name));
        Hold {
            holders: self.clone(),
            id,
            owner: OwnerProcess::current(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.list).len()
    }

    /// `InUse` (`EBUSY`, as from the kernel) with the holders' names.
    pub(crate) fn in_use(&self, [operation, what, help]: [&'static str; 3], clones: usize) -> Error {
        const SHOWN: usize = 8;
        let list = lock(&self.list);
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

/// Takes the last reference to a parent, or returns it with the names of its holders and clones.
/// `close` is the operation, the name and the advice of the error.
pub(crate) fn take_last<T>(
    shared: Arc<T>,
    holders: impl Fn(&T) -> &Holders,
    close: [&'static str; 3],
) -> Result<T, CloseError<Arc<T>>> {
    Arc::try_unwrap(shared).map_err(|shared| {
        // Each holder has one reference.
        let others = Arc::strong_count(&shared).saturating_sub(1);
        let clones = others.saturating_sub(holders(&shared).len());
        let error = holders(&shared).in_use(close, clones);
        CloseError::new(shared, error)
    })
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.owner.is_foreign() {
            // Another thread may have held the lock at the fork and does not exist in this child.
            return;
        }
        let mut list = lock(&self.holders.list);
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
        let list = lock(&holders.list);
        // SAFETY: the child only drops and leaves by _exit; the alarm ends it if it hangs.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                // SAFETY: as described above.
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
