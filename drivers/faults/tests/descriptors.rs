//! The invariant of descriptors.

use gaudi_faults::{DEVICE, Invariant, World};
use gaudi_seam::fault::Plan;

/// The code keeps an export open after it has dropped the buffer.
#[test]
fn open_export_is_reported() {
    let spec = DEVICE.parse().expect("a spec");
    let mut world = World::with_descriptors(&spec).expect("made");
    let mut leaked = None;
    let outcome = world.run(&Plan::default(), 0, |device| {
        let buffer = device.alloc_exclusive(4096)?;
        leaked = Some(buffer.export(..)?);
        Ok(())
    });
    let broken = outcome.expect("the device opens").violations;
    assert!(
        broken
            .iter()
            .any(|violation| violation.invariant == Invariant::Descriptors),
        "{broken:?}"
    );
}
