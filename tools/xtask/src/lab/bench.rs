//! A guest that is ready to boot: QEMU, a kernel and a root, from the cache or from Debian.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::card::Cards;
use super::guest::{Machine, Qemu, Variant};
use super::image::{Job, Program, write_root};
use super::kernels::{Kernel, Kernels};
use super::kmod;
use super::lock::Lock;
use super::modules::{self, Module};
use super::verbs::Verbs;
use crate::missing::{OrSkip as _, missing, or_missing};
use crate::packages::{Cache, RELEASE};
use crate::workspace::Workspace;
use crate::{files, run};

/// Three times what the longest plan takes on two busy cores: that of a guest with a card, which is
/// reset fifty times.
pub(super) const LIMIT: Duration = Duration::from_secs(1800);
/// The longest time without a line of a guest whose machine has no `silence`: each test prints one
/// at its end.
pub(super) const SILENCE: Duration = Duration::from_secs(600);

#[derive(Args, Clone)]
pub(crate) struct Which {
    /// A kernel's id; the newest when none is given
    #[arg(long, value_name = "ID")]
    pub(super) kernel: Option<String>,
}

/// Images and consoles of this workspace.
pub(super) fn folder(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.logs.join("lab");
    files::make_folder(&folder)?;
    Ok(folder)
}

/// The cache, and the lock of the machine's lab for this run; prints which process it waits for.
pub(super) fn open(workspace: &Workspace) -> anyhow::Result<(Cache, Lock)> {
    let cache = Cache::open()?;
    let purpose = format!("a lab of {}", workspace.root.display());
    let wait = |holder: &str| eprintln!("one lab at a time: waiting for {holder}");
    let lock = Lock::take(cache.folder(), &purpose, wait)?;
    Ok((cache, lock))
}

/// QEMU, ready to run, and what else does not depend on the kernel.
pub(super) struct Tools {
    pub(super) qemu: Qemu,
    pub(super) busybox: PathBuf,
    pub(super) note: String,
    /// libibverbs for the guests and a note, or why it is missing.
    pub(super) verbs: Result<(Verbs, String), String>,
}

/// A kernel, ready to boot.
pub(super) struct GuestKernel {
    pub(super) id: String,
    pub(super) release: String,
    pub(super) image: PathBuf,
    pub(super) modules: Vec<Module>,
    /// The kernel's list of what it has built in; empty where its package has none.
    pub(super) builtin: Vec<u8>,
    pub(super) note: String,
    /// The lab's own build of soft-RoCE, or why it is missing.
    pub(super) rxe: Result<PathBuf, String>,
    /// The module that lets habanalabs nodes be opened, or why it is missing.
    pub(super) open_flag: Result<PathBuf, String>,
    pub(super) tools: Arc<Tools>,
}

impl Tools {
    /// From the cache, or from Debian.
    pub(super) fn get(cache: &Cache, kernels: &Kernels) -> anyhow::Result<Tools> {
        if env::consts::ARCH != "x86_64" {
            return missing("the lab's kernels are amd64: run on an amd64 machine");
        }
        let unpacked = cache.bundle(&kernels.qemu)?;
        let busybox = unpacked.tree.join("usr/bin/busybox");
        let qemu = Qemu { tree: unpacked.tree };
        let version = qemu.version().or_skip(
            "set GAUDI_CACHE to a folder whose programs may run, or `cargo xtask lab clean --cache`",
        )?;
        let verbs = or_missing(cache.bundle(&kernels.verbs))?.map(|unpacked| {
            let programs = kernels.verbs_programs.clone();
            let tree = unpacked.tree;
            (Verbs { tree, programs }, unpacked.note)
        });
        Ok(Tools {
            qemu,
            busybox,
            note: format!("{version}; {}", unpacked.note),
            verbs,
        })
    }

    /// A file without its compression. The guest's busybox is static and so runs here too: the
    /// machine needs no xz.
    fn unpacked(&self, file: &Path) -> anyhow::Result<Vec<u8>> {
        match file.extension() {
            Some(end) if end == "xz" => {
                run::output(Command::new(&self.busybox).args(["xz", "-dc"]).arg(file))
            }
            _ => files::read(file),
        }
    }
}

impl GuestKernel {
    /// From the cache, or from Debian.
    pub(super) fn get(
        workspace: &Workspace,
        cache: &Cache,
        tools: &Arc<Tools>,
        kernels: &Kernels,
        row: &Kernel,
    ) -> anyhow::Result<GuestKernel> {
        let unpacked = cache.bundle(&row.bundle())?;
        let release = unpacked.release;
        let build = |recipe| {
            let root = &workspace.root;
            or_missing(kmod::build(cache, root, row, &release, &tools.busybox, recipe))
        };
        let folder = unpacked.tree.join(row.modules.replace(RELEASE, &release));
        Ok(GuestKernel {
            id: row.id.clone(),
            image: unpacked.tree.join(row.image.replace(RELEASE, &release)),
            modules: modules::closure(&folder, &kernels.guest.modules, |file| tools.unpacked(file))?,
            builtin: fs::read(folder.join("modules.builtin")).unwrap_or_default(), // it has none
            note: unpacked.note,
            rxe: build(&kmod::RXE)?,
            open_flag: build(&kmod::OPEN_FLAG)?,
            tools: Arc::clone(tools),
            release,
        })
    }

    /// Writes a root for the kernel and starts the cards. Returns the machine that boots it.
    pub(super) fn machine(
        &self,
        workspace: &Workspace,
        programs: &[Program],
        plan: &[Job],
        variant: Variant,
        server: Option<&Path>,
    ) -> anyhow::Result<Machine> {
        let place = folder(workspace)?.join(variant.name(&self.id));
        let file = |end: &str| PathBuf::from(format!("{}{end}", place.display()));
        let (root, console) = (file(".cpio"), file(".console.log"));
        write_root(&workspace.root, self, programs, &variant, plan, &root)?;
        let cards = match (&variant.shape, server) {
            (Some(shape), Some(server)) if shape.cards > 0 => Some(Cards::start(server, shape, &console)?),
            _ => None,
        };
        Ok(Machine {
            kernel: self.image.clone(),
            root,
            console,
            variant,
            cards,
        })
    }
}

/// One kernel for `run` and `shell`: here a missing thing is an error, there is nothing to count.
pub(super) fn one(
    workspace: &Workspace,
    kernels: &Kernels,
    which: &Which,
) -> anyhow::Result<(GuestKernel, Lock)> {
    let row = kernels.newest_of(which.kernel.as_slice())?;
    let (cache, lock) = open(workspace)?;
    let tools = Arc::new(Tools::get(&cache, kernels)?);
    let kernel = GuestKernel::get(workspace, &cache, &tools, kernels, row)?;
    eprintln!("{}\n{}", tools.note, kernel.note);
    if let Err(need) = &kernel.rxe {
        eprintln!("stock soft-RoCE only: {need}");
    }
    Ok((kernel, lock))
}
