//! MSI-X vectors and the events that they signal.

use gaudi_seam::{DeviceIo, ErrorKind, Event};
use gaudi_spec::gaudi2::INTERRUPTS;

use crate::card::{Card, is_silent, signalled};

/// Connects a new event to a vector, and returns a descriptor of the event.
fn connect(device: &dyn DeviceIo, vector: u16) -> Event {
    let event = Event::new().expect("an event");
    let other = event.duplicate().expect("a descriptor");
    let set = device.set_interrupt(vector, Some(event));
    set.unwrap_or_else(|error| panic!("there is a vector {vector}: {error:?}"));
    other
}

fn disconnect(device: &dyn DeviceIo, vectors: &[u16]) {
    for &vector in vectors {
        device
            .set_interrupt(vector, None)
            .expect("there is such a vector");
    }
}

pub(crate) fn vector_signals_its_own_event(device: &dyn DeviceIo) {
    const VECTORS: [u16; 4] = [5, 0, INTERRUPTS - 1, 48];
    let card = Card::new(device);
    card.enable_interrupts();
    let events = VECTORS.map(|vector| connect(device, vector));
    for (vector, event) in VECTORS.iter().zip(&events) {
        for turn in 0..3 {
            card.raise(*vector);
            assert_eq!(signalled(event), 1, "vector {vector}, turn {turn}");
        }
    }
    // A vector without an event signals nothing.
    card.raise(6);
    assert!(events.iter().all(is_silent), "no other vector signals");
    disconnect(device, &VECTORS);
}

pub(crate) fn vector_signals_its_newest_event(device: &dyn DeviceIo) {
    let card = Card::new(device);
    card.enable_interrupts();
    let (first, witness) = (connect(device, 7), connect(device, 8));
    card.raise(7);
    assert_eq!(signalled(&first), 1);
    let second = connect(device, 7);
    card.raise(7);
    assert_eq!(signalled(&second), 1, "the new one");
    assert!(is_silent(&first), "and not the old one");
    disconnect(device, &[7]);
    card.raise(7);
    card.raise(8);
    assert_eq!(signalled(&witness), 1, "the later vector has arrived");
    assert!(
        is_silent(&first) && is_silent(&second),
        "the disconnected events are not signalled"
    );
    // Disconnects all, and connects one again.
    disconnect(device, &[8, 7]);
    let third = connect(device, 7);
    card.raise(7);
    assert_eq!(signalled(&third), 1);
    disconnect(device, &[7]);
}

pub(crate) fn vector_past_last_is_refused(device: &dyn DeviceIo) {
    assert_eq!(device.interrupts(), INTERRUPTS);
    for vector in [INTERRUPTS, u16::MAX] {
        for event in [None, Some(Event::new().expect("an event"))] {
            let wrong = device
                .set_interrupt(vector, event)
                .expect_err("an invalid vector");
            assert_eq!(wrong.kind(), ErrorKind::InvalidInput, "vector {vector}: {wrong}");
        }
    }
    disconnect(device, &[0, INTERRUPTS - 1]);
}
