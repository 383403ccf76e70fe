//! Who holds a parent object, by name: what a refused close tells.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{Errno, Error, ErrorKind};

/// The holders of one object. Changed when children are made and closed, never on a hot path.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    list: Mutex<Vec<(u64, String)>>,
    next: AtomicU64,
}

/// One child's entry; it goes when the child does.
#[derive(Debug)]
pub(crate) struct Hold {
    holders: Arc<Holders>,
    id: u64,
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
        let mut list = self.holders.list();
        if let Some(place) = list.iter().position(|(id, _)| *id == self.id) {
            list.swap_remove(place);
        }
    }
}
