//! One lab at a time on a machine: a lab runs several guests at once where their figures do not
//! count, and more would only slow each other down.
//!
//! - An advisory lock (flock(2)) on a file of the cache: the kernel releases it when its holder
//!   dies, so it is never stale.
//! - The file names its holder, for the message of a process that waits; it has no other use.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The machine's lab, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Waits for the lab. If another process holds it, calls `wait` once with that process's name.
    pub(crate) fn take(cache: &Path, purpose: &str, wait: impl FnOnce(&str)) -> anyhow::Result<Lock> {
        let path = cache.join("lab.lock");
        let open = || {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            options
                .open(&path)
                .with_context(|| format!("cannot open {}", path.display()))
        };
        let mut locked = match Flock::lock(open()?, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => locked,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder); // only for the message
                let holder = holder
                    .lines()
                    .next()
                    .unwrap_or("a process that has not written its name yet");
                wait(holder);
                Flock::lock(file, FlockArg::LockExclusive)
                    .map_err(|(_, errno)| errno)
                    .with_context(|| format!("cannot lock {}", path.display()))?
            }
            Err((_, errno)) => bail!("cannot lock {}: {errno}", path.display()),
        };
        let mut note = || {
            locked.set_len(0)?;
            locked.rewind()?;
            writeln!(locked, "process {} ({purpose})", std::process::id())
        };
        let _ = note(); // a lock without a name is still a lock
        Ok(Lock { _file: locked })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn second_lab_waits_and_names_the_holder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = Lock::take(folder.path(), "lab test in /a", |holder| {
            panic!("the lab is free, but {holder} is waited for")
        })
        .expect("a lock");
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                Lock::take(folder.path(), "lab run in /b", move |holder| {
                    sender.send(holder.to_owned()).expect("the test listens");
                })
                .map(drop)
            });
            let holder = receiver
                .recv_timeout(Duration::from_secs(60))
                .expect("the second waits");
            assert!(holder.contains("lab test in /a"), "the holder is named: {holder}");
            assert!(!second.is_finished(), "it waits as long as the first holds");
            drop(first);
            second.join().expect("no panic").expect("then the lab is its own");
        });
        let _third = Lock::take(folder.path(), "x", |holder| {
            panic!("{holder} has released the lock")
        })
        .expect("a lock that was dropped is free");
    }
}
