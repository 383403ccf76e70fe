//! Random operations in the threads of one program: buffers never share memory.

mod common;

use std::thread;

use gaudi_random::{CASES_VARIABLE, SEED_VARIABLE, cases, seed};
use gaudi_seam::Errno;
use gaudi_sys::RawMapping;
use gaudi_sys::random::SplitMix64;

use common::{Outcome, PAGE, Program, bytes};

const THREADS: u64 = 4;
/// Maximum number of buffers of a thread.
const MOST: u64 = 24;

struct Buffer {
    handle: u64,
    memory: RawMapping,
    /// Expected value of the first and the last word.
    mark: u64,
    destroyed: bool,
}

impl Buffer {
    fn new(program: &Program, rng: &mut SplitMix64) -> Outcome<Self> {
        let most = 1 << rng.below(8);
        let len = PAGE * (1 + rng.below(most) as usize);
        let handle = match rng.below(2) {
            0 => program.create(len),
            _ => program.create_mapped(len),
        }?;
        let memory = program.map(handle, len)?;
        for at in [0, len - 8] {
            assert_eq!(
                bytes::<8>(&memory, at),
                [0; 8],
                "a new buffer {handle:#x} is zeroed"
            );
        }
        let mark = rng.next();
        for at in [0, len - 8] {
            memory.write(at, &mark.to_le_bytes())?;
        }
        Ok(Self {
            handle,
            memory,
            mark,
            destroyed: false,
        })
    }

    fn check(&self) {
        for at in [0, self.memory.len() - 8] {
            let seen = u64::from_le_bytes(bytes(&self.memory, at));
            assert_eq!(seen, self.mark, "{:#x} at {at:#x}", self.handle);
        }
    }

    /// Checks a buffer that is destroyed but still mapped.
    fn check_handle(&self, program: &Program) {
        assert_eq!(program.usage(self.handle), Ok(0), "{:#x}", self.handle);
        assert_eq!(
            program.destroy(self.handle),
            Err(Errno::EINVAL),
            "{:#x}",
            self.handle
        );
    }
}

fn run(program: &Program, mut rng: SplitMix64, steps: u32) {
    let mut buffers: Vec<Buffer> = Vec::new();
    for _ in 0..steps {
        let nth = rng.below(MOST) as usize;
        match (rng.below(4), buffers.get_mut(nth)) {
            (0, Some(buffer)) if !buffer.destroyed => {
                assert_eq!(program.destroy(buffer.handle), Ok(()));
                buffer.destroyed = true;
            }
            // munmap(2) and destroy run in either order.
            (1, Some(_)) => {
                let buffer = buffers.swap_remove(nth);
                if buffer.destroyed && rng.below(16) == 0 {
                    buffer.check_handle(program);
                }
                let Buffer {
                    handle,
                    memory,
                    destroyed,
                    ..
                } = buffer;
                drop(memory);
                if !destroyed {
                    assert_eq!(program.destroy(handle), Ok(()));
                }
            }
            (_, None) => buffers.push(Buffer::new(program, &mut rng).expect("a buffer")),
            _ => {}
        }
        buffers.iter().for_each(Buffer::check);
    }
}

#[test]
fn buffers_never_share_memory() {
    let (seed, steps) = (seed(), cases(12_000));
    println!("seed={seed} steps={steps} ({SEED_VARIABLE}={seed} {CASES_VARIABLE}={steps})");
    let program = Program::new("random");
    thread::scope(|scope| {
        for nth in 0..THREADS {
            let program = &program;
            let rng = SplitMix64::new(SplitMix64::nth(seed, nth + 1));
            scope.spawn(move || run(program, rng, steps));
        }
    });
}
