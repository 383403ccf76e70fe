//! UCX's registration cache, or its cache of memory types, in a process of its own, where
//! `PEER_UCX` names UCX's files.
//!
//! The folder holds Debian's libucx0 and libucx-dev (1.18 or newer), and libc6 where UCX wants a
//! newer C library than the machine's: the program is then run by that library's own loader. The
//! program, `ucx/rcache.c`, is compiled by gcc against the headers that are beside the library, so
//! that its structs are the library's.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::threads::Lap;

/// The variable that names the folder which holds UCX's `usr`.
pub const VARIABLE: &str = "PEER_UCX";

const SOURCE: &str = include_str!("ucx/rcache.c");
/// The first that Debian ships with what is compared; as `rcache.c` answers.
const OLDEST: u64 = 1018;

/// A cache of UCX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Of registrations: `ucs_rcache_get` and put.
    Regions,
    /// Of memory types: `ucs_memtype_cache_lookup`.
    Types,
}

/// What both caches are asked.
#[derive(Debug)]
pub struct Queries {
    /// Regions.
    pub regions: u64,
    /// Bytes of a region.
    pub bytes: u64,
    /// From one region's first byte to the next one's.
    pub stride: u64,
    /// Bytes of a query.
    pub length: u64,
    /// Where each query begins, from the first region's first byte.
    pub offsets: Vec<u64>,
}

/// The running program, with its regions registered.
pub struct Rcache {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    /// Holds the program.
    _folder: TempDir,
    /// As text.
    pub version: String,
}

impl Rcache {
    /// Starts the peer.
    ///
    /// # Errors
    /// What would provide it.
    pub fn start(cache: Cache, queries: &Queries) -> Result<Self, String> {
        let root = std::env::var_os(VARIABLE)
            .map(PathBuf::from)
            .ok_or_else(|| format!("{VARIABLE}=folder of libucx0, libucx-dev and libc6 names none"))?;
        let libraries = libraries(&root)
            .ok_or_else(|| format!("{} has no libucs.so.0", root.join("usr/lib").display()))?;
        let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let program = compile(&root, &libraries, folder.path())?;
        let loader = libraries.join("ld-linux-x86-64.so.2");
        let mut command = if loader.is_file() {
            let mut command = Command::new(loader);
            command.arg("--library-path").arg(&libraries).arg(program);
            command
        } else {
            let mut command = Command::new(program);
            command.env("LD_LIBRARY_PATH", &libraries);
            command
        };
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("UCX's program does not start: {error}"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("UCX's program has no pipes".into());
        };
        let mut rcache = Self {
            child,
            to,
            from,
            _folder: folder,
            version: String::new(),
        };
        let version = rcache.ask(&[3])?;
        rcache.version = format!("UCX {}.{}", version / 1000, version % 1000);
        if version < OLDEST {
            return Err(format!("{} is older than 1.18", rcache.version));
        }
        let mut words = vec![
            match cache {
                Cache::Regions => 1,
                Cache::Types => 4,
            },
            queries.regions,
            queries.bytes,
            queries.stride,
            queries.length,
            queries.offsets.len() as u64,
        ];
        words.extend(&queries.offsets);
        rcache.ask(&words)?;
        Ok(rcache)
    }

    fn ask(&mut self, words: &[u64]) -> Result<u64, String> {
        self.ask_for::<1>(words).map(|[answer]| answer)
    }

    fn ask_for<const COUNT: usize>(&mut self, words: &[u64]) -> Result<[u64; COUNT], String> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let asked = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        let mut answers = [0; COUNT];
        let answered = asked.and_then(|()| {
            for answer in &mut answers {
                let mut bytes = [0; 8];
                self.from.read_exact(&mut bytes)?;
                *answer = u64::from_le_bytes(bytes);
            }
            Ok(())
        });
        answered.map_err(|error| format!("UCX's program ended: {error}"))?;
        Ok(answers)
    }

    /// Runs the queries with one thread on each processor.
    ///
    /// # Errors
    /// The peer's error.
    pub fn run(&mut self, processors: &[usize], count: u32) -> Result<Lap, String> {
        let mut words = vec![2, processors.len() as u64, u64::from(count)];
        words.extend(processors.iter().map(|&processor| processor as u64));
        let [_sum, time, switches, together, whole] = self.ask_for(&words)?;
        let [time, together, whole] = [time, together, whole].map(Duration::from_nanos);
        Ok(Lap::new(time, switches, together, whole))
    }
}

impl Drop for Rcache {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        // Nothing is left to report when the peer's process has ended.
        let _ = self.child.wait();
    }
}

/// The folder of `libucs.so.0`.
fn libraries(root: &Path) -> Option<PathBuf> {
    let lib = root.join("usr/lib");
    let mut folders = vec![lib.clone()];
    folders.extend(
        fs::read_dir(lib)
            .ok()?
            .filter_map(Result::ok)
            .map(|entry| entry.path()),
    );
    folders
        .into_iter()
        .find(|folder| folder.join("libucs.so.0").exists())
}

fn compile(root: &Path, libraries: &Path, folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (folder.join("rcache.c"), folder.join("rcache"));
    fs::write(&source, SOURCE).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
    let output = Command::new("gcc")
        .arg("-O3")
        .arg("-I")
        .arg(root.join("usr/include"))
        .arg(&source)
        .arg("-o")
        .arg(&program)
        // libucs finds a function of the program.
        .args(["-pthread", "-rdynamic"])
        .arg("-L")
        .arg(libraries)
        // What libucs needs is found when it runs.
        .args(["-l:libucs.so.0", "-Wl,--allow-shlib-undefined"])
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(format!(
            "gcc does not compile UCX's program: {}",
            String::from_utf8_lossy(&output.stderr)
                .lines()
                .next()
                .unwrap_or_default()
        )),
        Err(error) => Err(format!("gcc does not run: {error}")),
    }
}
