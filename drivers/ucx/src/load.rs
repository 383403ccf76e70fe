//! What happens when a process loads the library.

#![allow(unsafe_code, reason = "a function in the section of initializers")]

use std::sync::atomic::{AtomicBool, Ordering};

use gaudi_sys::fork::OwnerProcess;

use crate::library::{self, Refusal};
use crate::status::caught;
use crate::{cards, component, events, log, perftest};

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether UCX has this copy of the library.
pub(crate) fn is_registered() -> bool {
    REGISTERED.load(Ordering::Acquire)
}

/// The dynamic loader calls it.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZER: extern "C" fn() = initialize;

extern "C" fn initialize() {
    caught("load", || {
        // Installs the hook of fork(2) here: a fork child of a thread's first use would wait for
        // it.
        let _ = OwnerProcess::current();
        register();
    });
}

/// Registers the plugin if the process has a UCX of a known release, and the environment a card.
fn register() {
    let ucx = match library::find() {
        Ok(ucx) => ucx,
        Err(Refusal::NotLoaded) => return,
        Err(Refusal::UnknownRelease(version)) => {
            log::error(&format!(
                "UCX {version} is not supported: Gaudi memory is not registered; supported are {}",
                known()
            ));
            return;
        }
        Err(Refusal::Mismatch(what)) => {
            log::error(&format!(
                "this build of UCX is not supported: {what}; Gaudi memory is not registered"
            ));
            return;
        }
    };
    match cards::find() {
        Ok([]) => {}
        Ok(_) => {
            // Memory of one copy of the library is unknown to the others, so one does everything.
            if component::register(ucx) {
                events::install(ucx);
                perftest::install(ucx);
                REGISTERED.store(true, Ordering::Release);
            }
        }
        Err(error) => log::error(&format!("Gaudi memory is not registered: {error}")),
    }
}

/// The known releases, as `1.18 to 1.23`.
fn known() -> String {
    let releases = &crate::release::RELEASES;
    let name = |release: &crate::release::Release| format!("{}.{}", release.major, release.minor);
    let ends = releases.first().map(name).zip(releases.last().map(name));
    ends.map_or_else(String::new, |(first, last)| format!("{first} to {last}"))
}
