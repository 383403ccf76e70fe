//! Waits for copies beside other descriptors, as a server does: `epoll [DEVICE]`.
use std::time::Duration;

use gaudi::Device;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

const LEN: u64 = 1 << 20;
/// The token of the timer; smaller ones are the copies'.
const TIMER: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args().nth(1).unwrap_or("mock:gaudi2".into());
    let device = Device::open(&spec.parse()?)?;
    let buffer = device.alloc(TIMER * LEN)?;
    let host = device.alloc_host((TIMER * LEN) as usize)?;

    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let watch = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
    // Any other descriptor of the server.
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?;
    timer.set(
        Expiration::OneShot(Duration::from_secs(60).into()),
        TimerSetTimeFlags::empty(),
    )?;
    epoll.add(&timer, watch(TIMER))?;

    let mut copies = Vec::new();
    for token in 0..TIMER {
        let range = token * LEN..(token + 1) * LEN;
        let copy = device.copy(buffer.at(range.clone())?, host.at(range)?)?;
        let event = copy.event_fd()?; // readable when the copy has ended
        epoll.add(&event, watch(token))?;
        copies.push(Some((copy, event)));
    }
    let mut ready = [EpollEvent::empty(); 8];
    while copies.iter().any(Option::is_some) {
        let count = epoll.wait(&mut ready, EpollTimeout::NONE)?;
        for token in ready[..count].iter().map(EpollEvent::data) {
            let Some(place) = copies.get_mut(token as usize) else {
                return Err("the copies did not end in a minute".into());
            };
            let Some((copy, event)) = place.take() else {
                continue;
            };
            epoll.delete(&event)?;
            copy.poll()?; // whether it succeeded
            println!("copy {token} is complete");
        }
    }
    Ok(())
}
