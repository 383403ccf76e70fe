//! A reset of the function, and concurrent users.

use std::thread;

use gaudi_seam::{DeviceIo, Event, Iova};
use gaudi_spec::gaudi2::firmware::{self, boot};
use gaudi_spec::gaudi2::{INTERRUPTS, SRAM_BASE};

use super::registers::SCRATCH;
use crate::card::{Card, HOST, bytes, memory, pattern, signalled};

pub(crate) fn reset_restores_registers(device: &dyn DeviceIo) {
    let card = Card::new(device);
    assert_eq!(
        card.read(firmware::BOOT_STATUS),
        boot::WAITING_FOR_BOOT_FIT,
        "as after power-on"
    );
    for register in [SCRATCH, SCRATCH + 4, firmware::HW_STATE] {
        card.write(register, 0x1234_5678);
        assert_eq!(card.read(register), 0x1234_5678);
    }
    device.reset().expect("a card can be reset");
    card.enable();
    for register in [SCRATCH, SCRATCH + 4, firmware::HW_STATE] {
        assert_eq!(card.read(register), 0, "register {register:#x}");
    }
    assert_eq!(card.read(firmware::BOOT_STATUS), boot::WAITING_FOR_BOOT_FIT);
}

pub(crate) fn dma_and_interrupts_work_after_reset(device: &dyn DeviceIo) {
    const LEN: usize = 8192;
    let card = Card::new(device);
    let mapped = memory(LEN);
    card.map(HOST, &mapped);
    let event = Event::new().expect("an event");
    let other = event.duplicate().expect("a descriptor");
    device
        .set_interrupt(INTERRUPTS - 1, Some(event))
        .expect("there is such a vector");
    for turn in 0..2 {
        card.enable_interrupts();
        card.raise(INTERRUPTS - 1);
        assert_eq!(signalled(&other), 1, "turn {turn}: events stay connected");
        mapped.write(0, &pattern(turn, LEN)).expect("in the memory");
        card.copy(SRAM_BASE.get(), HOST, LEN as u32);
        mapped.fill(0, LEN, 0).expect("in the memory");
        card.copy(HOST, SRAM_BASE.get(), LEN as u32);
        assert!(
            bytes(&mapped, 0, LEN) == pattern(turn, LEN),
            "turn {turn}: the memory stays mapped"
        );
        device.reset().expect("a card can be reset");
        card.enable();
    }
    device
        .set_interrupt(INTERRUPTS - 1, None)
        .expect("there is such a vector");
    assert_eq!(
        device.dma_unmap(Iova(HOST), LEN as u64).expect("asked"),
        LEN as u64
    );
}

pub(crate) fn threads_share_a_device(device: &dyn DeviceIo) {
    const TURNS: u32 = 60;
    let card = Card::new(device);
    let shared = &card;
    thread::scope(|scope| {
        // Two threads use own registers, one maps and copies a page, one sets interrupts.
        for thread in 0..2u32 {
            scope.spawn(move || {
                let register = SCRATCH + thread * 4;
                for turn in 0..TURNS {
                    shared.write(register, turn << 8 | thread);
                    assert_eq!(shared.read(register), turn << 8 | thread, "thread {thread}");
                }
            });
        }
        scope.spawn(|| {
            for turn in 0..TURNS {
                let page = memory(4096);
                shared.map(HOST, &page);
                if turn % 8 == 0 {
                    page.write(0, &pattern(turn as u8, 4096)).expect("in the memory");
                    shared.copy(SRAM_BASE.get(), HOST, 4096);
                }
                let unmapped = shared.device.dma_unmap(Iova(HOST), 4096).expect("asked");
                assert_eq!(unmapped, 4096, "turn {turn}");
            }
        });
        scope.spawn(|| {
            for turn in 0..TURNS {
                let event = (turn % 2 == 0).then(|| Event::new().expect("an event"));
                let set = shared.device.set_interrupt((turn % 5) as u16, event);
                set.expect("there is such a vector");
            }
        });
    });
    for vector in 0..5 {
        device
            .set_interrupt(vector, None)
            .expect("there is such a vector");
    }
}
