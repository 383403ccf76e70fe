//! `mpi-check LIBRARY [bytes=N] OPERATION...`: the processes that mpirun(1) started move Gaudi
//! memory through an MPI library, `libmpi.so.40` or `libmpich.so.12`, and compare every byte.
//!
//! Each process prints `ok OPERATION rank N: ...` or `FAIL OPERATION rank N: ...`; `cargo xtask
//! test --step ucx` runs it. Device memory comes from the plugin the way ucx_perftest gets it.

mod allocator;
mod mpi;
mod pattern;

use std::process::ExitCode;

use allocator::{Failure, Memory, Place};
use mpi::Mpi;
use pattern::{compare, pattern};

/// Bytes of a message; the next-to-last one is unaligned.
const SIZES: [usize; 6] = [8, 1000, 8192, 65_536, 1_048_577, 4_194_304];
/// Messages in flight each way.
const IN_FLIGHT: usize = 64;

/// Moves data with messages of these sizes.
type Operation = fn(&Mpi, &[usize]) -> Result<String, Failure>;

const OPERATIONS: [(&str, Operation); 6] = [
    ("send", send),
    ("isend", isend),
    ("bcast", bcast),
    ("put", put),
    ("get", get),
    ("vector", vector),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let library = arguments.next().unwrap_or_default(); // an empty name is not a library
    let mut operations = Vec::new();
    let mut sizes = SIZES.to_vec();
    for name in arguments {
        if let Some(bytes) = name.strip_prefix("bytes=").and_then(|bytes| bytes.parse().ok()) {
            sizes = vec![bytes];
            continue;
        }
        match OPERATIONS.iter().find(|(known, _)| *known == name) {
            Some(row) => operations.push(row),
            None => {
                let known: Vec<_> = OPERATIONS.iter().map(|(known, _)| *known).collect();
                eprintln!(
                    "mpi-check: {name}: not an operation; they are {}",
                    known.join(", ")
                );
                return ExitCode::from(2);
            }
        }
    }
    let mpi = match Mpi::open(&library) {
        Ok(mpi) => mpi,
        Err(failure) => {
            eprintln!("mpi-check: {library}: {failure}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = true;
    for (name, operation) in operations {
        let answer = mpi.barrier().and_then(|()| operation(&mpi, &sizes));
        match answer {
            Ok(summary) => println!("ok {name} rank {}: {summary}", mpi.rank),
            Err(failure) => {
                all = false;
                println!("FAIL {name} rank {}: {failure}", mpi.rank);
            }
        }
    }
    match mpi.finalize() {
        Ok(()) if all => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(failure) => {
            println!("FAIL MPI_Finalize: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The next and the previous process of the ring.
fn neighbours(mpi: &Mpi) -> (usize, usize) {
    ((mpi.rank + 1) % mpi.size, (mpi.rank + mpi.size - 1) % mpi.size)
}

fn device(len: usize) -> Result<Memory, Failure> {
    Memory::new(Place::Device, len)
}

/// Sends to the next process and receives from the previous one. Even processes send first.
fn exchange(
    mpi: &Mpi,
    mut send: impl FnMut(usize) -> Result<(), Failure>,
    mut receive: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (next, previous) = neighbours(mpi);
    if mpi.rank % 2 == 0 {
        send(next)?;
        receive(previous)
    } else {
        receive(previous)?;
        send(next)
    }
}

fn send(mpi: &Mpi, sizes: &[usize]) -> Result<String, Failure> {
    let (_, previous) = neighbours(mpi);
    for &len in sizes {
        let start = len % 2;
        let (from, to) = (device(start + len)?, device(start + len)?);
        from.write(start, &pattern(mpi.rank + len, len))?;
        exchange(
            mpi,
            |next| mpi.send(from.address().wrapping_add(start), len, None, next),
            |previous| mpi.receive(to.address().wrapping_add(start), len, None, previous),
        )?;
        compare(&to, start, &pattern(previous + len, len))
            .map_err(|failure| format!("{len} bytes: {failure}"))?;
    }
    Ok(format!("{} sizes, device to device", sizes.len()))
}

fn isend(mpi: &Mpi, _sizes: &[usize]) -> Result<String, Failure> {
    let (next, previous) = neighbours(mpi);
    // From some bytes to above the rendezvous threshold.
    let len = |index: usize| 8 + index * index * 40;
    let room: usize = (0..IN_FLIGHT).map(len).sum();
    let (from, to) = (device(room)?, device(room)?);
    from.write(0, &pattern(mpi.rank, room))?;
    let mut requests = Vec::new();
    let mut start = 0;
    for index in 0..IN_FLIGHT {
        let at = |memory: &Memory| memory.address().wrapping_add(start);
        requests.push(mpi.ireceive(at(&to), len(index), previous, index)?);
        requests.push(mpi.isend(at(&from), len(index), next, index)?);
        start += len(index);
    }
    for request in requests {
        mpi.wait(request)?;
    }
    compare(&to, 0, &pattern(previous, room))?;
    Ok(format!("{IN_FLIGHT} messages each way in flight, {room} bytes"))
}

fn bcast(mpi: &Mpi, sizes: &[usize]) -> Result<String, Failure> {
    for &len in sizes {
        for root in 0..mpi.size {
            let memory = device(len)?;
            let own = pattern(mpi.rank, len);
            memory.write(0, &own)?;
            mpi.bcast(memory.address(), len, root)?;
            compare(&memory, 0, &pattern(root, len))
                .map_err(|failure| format!("{len} bytes from rank {root}: {failure}"))?;
        }
    }
    Ok(format!("{} sizes from {} roots", sizes.len(), mpi.size))
}

fn put(mpi: &Mpi, sizes: &[usize]) -> Result<String, Failure> {
    let (next, previous) = neighbours(mpi);
    for &len in sizes {
        let (from, to) = (device(len)?, device(len)?);
        from.write(0, &pattern(mpi.rank + len, len))?;
        let window = mpi.window(to.address(), len)?;
        window.access(next, || window.put(from.address(), len, next, 0))?;
        mpi.barrier()?;
        let answer = compare(&to, 0, &pattern(previous + len, len));
        window.free()?;
        answer.map_err(|failure| format!("{len} bytes: {failure}"))?;
    }
    Ok(format!("{} sizes", sizes.len()))
}

fn get(mpi: &Mpi, sizes: &[usize]) -> Result<String, Failure> {
    let (next, _) = neighbours(mpi);
    for &len in sizes {
        let (from, to) = (device(len)?, device(len)?);
        from.write(0, &pattern(mpi.rank + len, len))?;
        let window = mpi.window(from.address(), len)?;
        window.access(next, || window.get(to.address(), len, next, 0))?;
        mpi.barrier()?;
        let answer = compare(&to, 0, &pattern(next + len, len));
        window.free()?;
        answer.map_err(|failure| format!("{len} bytes: {failure}"))?;
    }
    Ok(format!("{} sizes", sizes.len()))
}

fn vector(mpi: &Mpi, _sizes: &[usize]) -> Result<String, Failure> {
    let (_, previous) = neighbours(mpi);
    let mut moved = 0;
    for (blocks, len, stride) in [(3, 8, 24), (100, 100, 256), (1000, 1024, 1536)] {
        let kind = mpi.vector(blocks, len, stride)?;
        let room = blocks * stride;
        let (from, to) = (device(room)?, device(room)?);
        from.write(0, &pattern(mpi.rank, room))?;
        to.write(0, &vec![0xaa; room])?;
        exchange(
            mpi,
            |next| mpi.send(from.address(), 1, Some(&kind), next),
            |previous| mpi.receive(to.address(), 1, Some(&kind), previous),
        )?;
        // The bytes between the blocks keep their value.
        let sent = pattern(previous, room);
        let mut wanted = vec![0xaa; room];
        for start in (0..blocks).map(|block| block * stride) {
            wanted[start..start + len].copy_from_slice(&sent[start..start + len]);
        }
        compare(&to, 0, &wanted).map_err(|failure| format!("{blocks} blocks: {failure}"))?;
        moved += blocks;
    }
    Ok(format!("{moved} blocks"))
}
