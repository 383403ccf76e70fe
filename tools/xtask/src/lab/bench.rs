//! A guest that is ready to boot: QEMU, a kernel and a root, from the cache or from Debian.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::guest::{Machine, Qemu, Side};
use super::image::{Added, Job, Program, Root};
use super::kernels::{Kernel, Kernels, Shape};
use super::lock::Lock;
use super::modules;
use super::verbs::Verbs;
use super::{kmod, rxe};
use crate::missing::{missing, or_missing};
use crate::packages::Cache;
use crate::workspace::Workspace;

/// Three times what the longest plan takes on two busy cores: that of a guest with a card, which is
/// reset fifty times.
pub(super) const LIMIT: Duration = Duration::from_secs(1800);
/// Lines of the console that are shown when a guest failed.
const TAIL: usize = 60;

#[derive(Args)]
pub(crate) struct Which {
    /// A kernel's id; the newest when none is given
    #[arg(long, value_name = "ID")]
    pub(super) kernel: Option<String>,
}

/// Images and consoles of this workspace.
pub(super) fn folder(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.logs.join("lab");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Locks the machine's lab for this run; prints which process it waits for.
pub(super) fn lock(workspace: &Workspace, cache: &Cache) -> anyhow::Result<Lock> {
    let purpose = format!("a lab of {}", workspace.root.display());
    Lock::take(cache.folder(), &purpose, |holder| {
        eprintln!("one lab at a time: waiting for {holder}");
    })
}

/// QEMU, ready to run.
pub(super) struct Tools {
    pub(super) qemu: Qemu,
    pub(super) busybox: PathBuf,
    pub(super) note: String,
    /// libibverbs for the guests, or what keeps it away.
    pub(super) verbs: Result<Verbs, String>,
    pub(super) verbs_note: String,
}

/// A kernel, ready to boot.
pub(super) struct GuestKernel {
    pub(super) id: String,
    pub(super) release: String,
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
    pub(super) note: String,
    /// The lab's own build of soft-RoCE, or what keeps it away.
    pub(super) rxe: Result<PathBuf, String>,
    /// The module that lets habanalabs nodes be opened, or why it is missing.
    pub(super) open_flag: Result<PathBuf, String>,
}

/// QEMU of the cache, or of Debian.
pub(super) fn bench(cache: &Cache, kernels: &Kernels) -> anyhow::Result<Tools> {
    if env::consts::ARCH != "x86_64" {
        return missing("the lab's kernels are amd64: run on an amd64 machine");
    }
    let unpacked = cache.bundle(&kernels.qemu)?;
    let qemu = Qemu {
        tree: unpacked.tree.clone(),
    };
    let version = match qemu.version() {
        Ok(version) => version,
        Err(error) => {
            return missing(format!(
                "{error:#}: set GAUDI_CACHE to a folder whose programs may run, or `cargo xtask lab clean --cache`"
            ));
        }
    };
    let verbs = or_missing(cache.bundle(&kernels.verbs))?;
    Ok(Tools {
        qemu,
        busybox: unpacked.tree.join("usr/bin/busybox"),
        note: format!("{version}; {}", unpacked.note),
        verbs_note: verbs
            .as_ref()
            .map_or_else(Clone::clone, |unpacked| unpacked.note.clone()),
        verbs: verbs.map(|unpacked| Verbs {
            tree: unpacked.tree,
            programs: kernels.verbs_programs.clone(),
        }),
    })
}

/// A kernel of the cache, or of Debian.
pub(super) fn kernel(
    workspace: &Workspace,
    cache: &Cache,
    bench: &Tools,
    row: &Kernel,
) -> anyhow::Result<GuestKernel> {
    let unpacked = cache.bundle(&row.bundle())?;
    let (root, busybox, release) = (&workspace.root, &bench.busybox, unpacked.release);
    Ok(GuestKernel {
        id: row.id.clone(),
        image: unpacked.tree.join(row.image(&release)),
        modules: unpacked.tree.join(row.modules(&release)),
        note: unpacked.note,
        rxe: or_missing(rxe::build(cache, root, row, &release, busybox))?,
        open_flag: or_missing(kmod::open_flag(cache, root, row, &release, busybox))?,
        release,
    })
}

/// What a guest is, where it is not the usual one.
#[derive(Clone, Debug, Default)]
pub(super) struct Variant {
    /// One of two.
    pub(super) side: Option<Side>,
    /// Another machine.
    pub(super) shape: Option<Shape>,
    /// Its memory, as QEMU takes it.
    pub(super) memory: Option<String>,
    /// Files that the user adds to its root.
    pub(super) added: Vec<Added>,
}

impl Variant {
    /// For files and lines: the kernel's id, and what is variant.
    pub(super) fn name(&self, kernel: &str) -> String {
        let side = self.side.iter().map(|side| side.letter.to_string());
        let shape = self.shape.iter().map(|shape| shape.id.clone());
        let parts: Vec<_> = [kernel.to_owned()].into_iter().chain(side).chain(shape).collect();
        parts.join("-")
    }
}

/// Writes a root for the kernel. Returns the machine that boots it.
pub(super) fn machine(
    workspace: &Workspace,
    kernels: &Kernels,
    bench: &Tools,
    kernel: &GuestKernel,
    programs: &[Program],
    plan: &[Job],
    variant: Variant,
) -> anyhow::Result<Machine> {
    let unpack = |file: &Path| -> anyhow::Result<Vec<u8>> {
        if file.extension().is_none_or(|end| end != "xz") {
            return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        }
        // The guest's busybox is static and so runs here too: the machine needs no xz.
        let mut command = Command::new(&bench.busybox);
        let output = command.args(["xz", "-dc"]).arg(file).output();
        let output = output.context("cannot run busybox")?;
        if !output.status.success() {
            bail!("xz cannot read {}", file.display());
        }
        Ok(output.stdout)
    };
    let modules = modules::Tree::open(&kernel.modules)?.closure(&kernels.guest.modules, unpack)?;
    let folder = folder(workspace)?;
    let name = variant.name(&kernel.id);
    let machine = Machine {
        kernel: kernel.image.clone(),
        root: folder.join(format!("{name}.cpio")),
        console: folder.join(format!("{name}.console.log")),
        side: variant.side,
        shape: variant.shape,
        memory: variant.memory,
    };
    let root = Root {
        workspace: &workspace.root,
        busybox: &bench.busybox,
        release: &kernel.release,
        modules: &modules,
        builtin: fs::read(kernel.modules.join("modules.builtin")).unwrap_or_default(),
        built: [("rdma_rxe", &kernel.rxe), ("hl_open_flag", &kernel.open_flag)],
        verbs: &bench.verbs,
        programs,
        added: &variant.added,
        cards: machine.shape.as_ref().is_some_and(|shape| shape.cards > 0),
        plan,
    };
    root.write(&machine.root)?;
    Ok(machine)
}

/// The end of a console, for the reader of a failure.
pub(super) fn console_tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// One kernel for `run` and `shell`: here a missing thing is an error, there is nothing to count.
pub(super) fn one(
    workspace: &Workspace,
    which: &Which,
) -> anyhow::Result<(Kernels, Tools, GuestKernel, Lock)> {
    let kernels = Kernels::load(&workspace.root)?;
    let named: Vec<_> = which.kernel.iter().cloned().collect();
    let row = kernels
        .chosen(&named)?
        .last()
        .copied()
        .cloned()
        .context("there is no kernel")?;
    let cache = Cache::open()?;
    let lock = lock(workspace, &cache)?;
    let bench = bench(&cache, &kernels)?;
    let kernel = kernel(workspace, &cache, &bench, &row)?;
    eprintln!("{}\n{}", bench.note, kernel.note);
    if let Err(need) = &kernel.rxe {
        eprintln!("stock soft-RoCE only: {need}");
    }
    Ok((kernels, bench, kernel, lock))
}
