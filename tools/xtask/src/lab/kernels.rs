//! `tests/lab/kernels.toml`: which kernels the lab boots, and with what.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::files;
use crate::packages::{Bundle, Pin, RELEASE, Release, Slice};

/// The file, relative to the workspace's root.
pub(crate) const FILE: &str = "tests/lab/kernels.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernels {
    /// QEMU and the guest's shell, with their dependencies.
    pub(crate) qemu: Bundle,
    /// libibverbs and other programs of the guest, with their dependencies.
    pub(crate) verbs: Bundle,
    /// Programs of `usr/bin` of the bundle `verbs` that the guest has on PATH.
    pub(crate) verbs_programs: Vec<String>,
    #[serde(rename = "kernel")]
    pub(crate) rows: Vec<Kernel>,
    pub(crate) guest: Guest,
    /// Machines beside the default one.
    #[serde(rename = "machine", default)]
    pub(crate) shapes: Vec<Shape>,
}

/// One kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// The name on the command line and in the ledger.
    pub(crate) id: String,
    suite: String,
    release: String,
    series: String,
    /// The image and the folder of modules below the package's root; `{release}` stands for the
    /// release.
    pub(crate) image: String,
    pub(crate) modules: String,
    packages: Vec<Pin>,
    pub(crate) rxe: Rxe,
}

/// The tools and the sources of the lab's own build of `rdma_rxe`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rxe {
    suites: Vec<String>,
    /// The kernel's headers, which bring the compiler, and what make(1) calls.
    tools: Vec<Pin>,
    /// One package, with the kernel's sources as an archive in `usr/src`.
    source: Pin,
}

/// What every guest has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guest {
    pub(crate) modules: Vec<String>,
    pub(crate) programs: Vec<String>,
    /// Examples (CRATE/NAME) that tests find on PATH.
    pub(crate) examples: Vec<String>,
    pub(crate) crates: Vec<String>,
    /// Test programs of those crates, or single tests (CRATE/FILE::TEST), that need files of the
    /// workspace or do not depend on the kernel.
    pub(crate) host_only: Vec<String>,
    /// Test programs that run in two guests at once, with a network between them.
    pub(crate) pairs: Vec<String>,
}

/// A machine beside the default one, and the tests that run there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// The name in the ledger; a test reads it in `GAUDI_LAB_MACHINE`.
    pub(crate) id: String,
    /// QEMU's name of the processor.
    pub(crate) cpu: String,
    /// Whether the NIC, the memory behind a BAR and the cards are below one PCIe switch.
    pub(crate) switch: bool,
    /// How many modelled Gaudi2 are plugged in.
    #[serde(default)]
    pub(crate) cards: u8,
    /// Bytes of HBM of each, as `vgaudi serve --dram` takes them, if not the default.
    #[serde(default)]
    pub(crate) dram: Option<String>,
    /// Whether its tests run in two such guests at once, with a network between them.
    #[serde(default)]
    pub(crate) pair: bool,
    /// Whether the cards are behind an IOMMU.
    #[serde(default)]
    pub(crate) iommu: bool,
    /// Bytes of each card's memory that its BAR maps, as `vgaudi serve --bar4` takes them, if not
    /// the default.
    #[serde(default)]
    pub(crate) bar: Option<String>,
    /// Whether the guest may not map that memory (`vgaudi serve --no-mmap`).
    #[serde(default)]
    pub(crate) no_mmap: bool,
    /// Seconds without a line of output after which the guest is killed, if its tests print lines
    /// more often than that.
    #[serde(default)]
    pub(crate) silence: Option<u64>,
    /// Parts of warnings of the kernel that its tests provoke and that are not defects of ours.
    #[serde(default)]
    known_cries: Vec<String>,
    /// Test programs (CRATE/FILE). Those of a machine with cards run on such machines alone.
    pub(crate) tests: Vec<String>,
}

impl Kernels {
    pub(crate) fn load(root: &Path) -> anyhow::Result<Kernels> {
        let text = files::read_text(&root.join(FILE))?;
        Kernels::parse(&text).with_context(|| format!("{FILE} is wrong"))
    }

    fn parse(text: &str) -> anyhow::Result<Kernels> {
        let kernels: Kernels = toml::from_str(text)?;
        if kernels.rows.is_empty() {
            bail!("it has no kernel");
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let ids = kernels.rows.iter().map(|row| &row.id);
        for id in ids.chain(kernels.shapes.iter().map(|shape| &shape.id)) {
            if id.is_empty() || !id.chars().all(plain) {
                bail!("the id {id:?} is part of file names: letters, digits, `.-_` only");
            }
        }
        for (index, row) in kernels.rows.iter().enumerate() {
            if kernels.rows[..index].iter().any(|other| other.id == row.id) {
                bail!("two kernels have the id {}", row.id);
            }
            if !row.release.starts_with(&row.series) {
                bail!("{} is not a release of the series {}", row.release, row.series);
            }
        }
        if kernels.qemu.suites.is_empty() {
            bail!("qemu has no suite");
        }
        let of_row = |row: &'_ Kernel| {
            [
                &row.packages[..],
                &row.rxe.tools,
                std::slice::from_ref(&row.rxe.source),
            ]
            .concat()
        };
        let mut pins: Vec<Pin> = kernels.rows.iter().flat_map(of_row).collect();
        pins.extend_from_slice(&kernels.qemu.packages);
        pins.extend_from_slice(&kernels.verbs.packages);
        if let Some(pin) = pins.iter().find(|pin| !pin.is_whole()) {
            bail!("{}: {:?} is not a SHA-256", pin.name, pin.sha256);
        }
        Ok(kernels)
    }

    /// The rows with these ids, in the file's order; all when none is named.
    pub(crate) fn chosen(&self, ids: &[String]) -> anyhow::Result<Vec<&Kernel>> {
        for id in ids {
            named(&self.rows, id, |row| &row.id)?;
        }
        let is_chosen = |row: &&Kernel| ids.is_empty() || ids.contains(&row.id);
        Ok(self.rows.iter().filter(is_chosen).collect())
    }

    /// The last of the [`chosen`](Kernels::chosen) rows.
    pub(crate) fn newest_of(&self, ids: &[String]) -> anyhow::Result<&Kernel> {
        self.chosen(ids)?.pop().context("there is no kernel")
    }

    /// The machine of this name.
    pub(crate) fn shape(&self, id: &str) -> anyhow::Result<&Shape> {
        named(&self.shapes, id, |shape| &shape.id)
    }

    /// Whether a test program (CRATE/FILE) needs a card.
    pub(crate) fn needs_card(&self, program: &str) -> bool {
        let mut with_cards = self.shapes.iter().filter(|shape| shape.cards > 0);
        with_cards.any(|shape| shape.tests.iter().any(|test| test == program))
    }
}

/// The row of this id.
fn named<'a, T>(rows: &'a [T], id: &str, id_of: impl Fn(&T) -> &String) -> anyhow::Result<&'a T> {
    let known: Vec<_> = rows.iter().map(|row| id_of(row).as_str()).collect();
    let found = rows.iter().find(|row| id_of(row) == id);
    found.with_context(|| format!("{FILE} has no {id}, only {}", known.join(", ")))
}

impl Shape {
    /// The same machine, without known warnings.
    pub(crate) fn strict(&self) -> Shape {
        Shape {
            known_cries: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether the kernel's driver has its cards, which then need the open flag.
    pub(crate) fn has_driver(&self) -> bool {
        self.cards > 0 && !self.iommu
    }

    /// Whether its tests provoke this warning of the kernel.
    pub(crate) fn knows(&self, warning: &str) -> bool {
        self.known_cries
            .iter()
            .any(|part| warning.contains(part.as_str()))
    }
}

impl Guest {
    /// The tests of a program that are for the host alone.
    pub(crate) fn left_out<'a>(&'a self, program: &str) -> impl Iterator<Item = &'a str> {
        let of_it = move |entry: &'a String| entry.strip_prefix(program)?.strip_prefix("::");
        self.host_only.iter().filter_map(of_it)
    }
}

impl Kernel {
    pub(crate) fn bundle(&self) -> Bundle {
        Bundle {
            id: format!("kernel-{}", self.id),
            suites: vec![self.suite.clone()],
            packages: self.packages.clone(),
            release: Some(Release {
                pinned: self.release.clone(),
                series: self.series.clone(),
            }),
            ..Bundle::default()
        }
    }

    /// The headers of this release, with a compiler and all that a build needs: a tree for
    /// chroot(1).
    pub(crate) fn tools(&self, release: &str) -> Bundle {
        let named = |pin: &Pin| Pin {
            name: pin.name.replace(RELEASE, release),
            ..pin.clone()
        };
        let without = ["linux-image-", "initramfs-tools", "udev_", "klibc-utils_"];
        Bundle {
            id: format!("tools-{}", self.id),
            suites: self.rxe.suites.clone(),
            packages: self.rxe.tools.iter().map(named).collect(),
            closure: true,
            // Bookworm's headers depend on the kernel itself, whose installation writes an
            // initramfs.
            without: without.map(str::to_owned).to_vec(),
            ..Bundle::default()
        }
    }

    /// The driver's sources, cut out by `busybox`, and where in the tree they are.
    pub(crate) fn source(&self, busybox: &Path) -> (Bundle, String) {
        let name = &self.rxe.source.name;
        let folder = format!("{name}/drivers/infiniband/sw/rxe");
        let bundle = Bundle {
            id: format!("source-{}", self.id),
            suites: self.rxe.suites.clone(),
            packages: vec![self.rxe.source.clone()],
            slice: Some(Slice {
                archive: format!("usr/src/{name}.tar.xz"),
                folder: folder.clone(),
                busybox: busybox.to_owned(),
            }),
            ..Bundle::default()
        };
        (bundle, folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        files::read_text(&root.join(FILE)).expect("the file is part of the workspace")
    }

    #[test]
    fn the_committed_file_is_read() {
        let kernels = Kernels::parse(&real()).expect("it is right");
        let ids: Vec<_> = kernels.rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(
            ids,
            ["6.12", "7.3"],
            "one kernel without peer-to-peer DMA, one with it"
        );
        let row = &kernels.rows[1];
        assert_eq!(
            row.image.replace(RELEASE, "7.4.1+x"),
            "usr/lib/modules/7.4.1+x/vmlinuz.unsigned",
            "a stand-in's release is in its paths"
        );
        let chosen = kernels.chosen(&["7.3".to_owned()]).expect("it is there");
        assert_eq!(chosen.len(), 1, "only the named one");
        let error = kernels.chosen(&["5.0".to_owned()]).expect_err("there is none");
        assert!(
            error.to_string().contains("6.12, 7.3"),
            "the known ones are named: {error}"
        );
    }

    #[test]
    fn invalid_row_is_rejected() {
        let refused = |from: &str, to: &str| {
            let text = real();
            assert!(text.contains(from), "{from:?} is in the file");
            let error = Kernels::parse(&text.replacen(from, to, 1)).expect_err("it is wrong");
            format!("{error:#}")
        };
        for (from, to, part, why) in [
            (
                "sha256 = \"447d",
                "sha256 = \"447",
                "not a SHA-256",
                "a short digest",
            ),
            (
                "id = \"7.3\"",
                "id = \"6.12\"",
                "two kernels",
                "one id, one kernel",
            ),
            (
                "id = \"7.3\"",
                "id = \"../7\"",
                "file names",
                "an id is not a path",
            ),
            (
                "series = \"7.\"",
                "series = \"8.\"",
                "series 8.",
                "a release of another series",
            ),
            ("[guest]", "[gast]", "gast", "an unknown word is named"),
        ] {
            let message = refused(from, to);
            assert!(message.contains(part), "{why}: {message}");
        }
    }
}
