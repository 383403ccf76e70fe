//! Options of a running kernel's configuration.

use super::tree::Tree;

/// An option of the kernel's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelOption {
    /// Whether the kernel has it.
    pub is_set: bool,
    /// The file that was read.
    pub source: String,
}

/// Where the configuration of the kernel of that release may be.
fn files(release: Option<&str>) -> Vec<String> {
    // A release is part of a path: it must not lead elsewhere.
    let release = release.filter(|release| !release.contains('/'));
    let named = release.into_iter().flat_map(|release| {
        [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
        ]
    });
    // Of the running kernel itself, where it has CONFIG_IKCONFIG_PROC.
    std::iter::once("/proc/config.gz".to_owned())
        .chain(named)
        .collect()
}

/// Whether the running kernel was built with an option, such as `CONFIG_PCI_P2PDMA`; `m` is not
/// `y`.
///
/// # Errors
/// The paths of the configuration, if none of them can be read.
pub fn kernel_option(
    tree: &dyn Tree,
    release: Option<&str>,
    option: &str,
) -> Result<KernelOption, Vec<String>> {
    let files = files(release);
    let line = format!("{option}=y");
    for file in &files {
        if let Ok(is_set) = tree.contains(file, &line) {
            return Ok(KernelOption {
                is_set,
                source: file.clone(),
            });
        }
    }
    Err(files)
}

/// Whether the kernel has a function, by its type information or its symbols.
pub(super) fn has_function(tree: &dyn Tree, function: &str) -> Option<bool> {
    // The symbols are last: the kernel takes a third of a second to print them.
    let typed = || tree.contains("/sys/kernel/btf/vmlinux", function).ok();
    let symbol = || tree.contains("/proc/kallsyms", &format!(" {function}")).ok();
    typed().or_else(symbol)
}

#[cfg(test)]
mod tests {
    use super::super::{Manifest, Recorder, Topology};
    use super::*;

    const EXAMPLE: &str = include_str!("../../tests/reach/fixtures/hls2.tree");
    const SYMBOLS: &str = "/proc/sys/kernel/
  osrelease = 7.3.0
/proc/
  kallsyms = ffff0 T pci_p2pdma_distance_many
";

    /// Whether the machine of this tree has the option, and what was read of the tree.
    fn read(text: &str) -> (Option<bool>, Manifest) {
        let tree: Manifest = text.parse().unwrap();
        let recorder = Recorder::new(&tree);
        let topology = Topology::read(&recorder);
        (topology.kernel.p2pdma, recorder.manifest())
    }

    #[test]
    fn symbols_are_read_last() {
        let (answer, read_of) = read(SYMBOLS);
        assert_eq!(answer, Some(true));
        assert!(read_of.node("/proc/kallsyms").is_ok(), "no other source");
        for source in [
            "/proc/\n  config.gz = CONFIG_PCI_P2PDMA=y\n",
            "/boot/\n  config-7.3.0 = CONFIG_PCI_P2PDMA=y\n",
            "/lib/modules/7.3.0/\n  config = CONFIG_PCI_P2PDMA=y\n",
            "/sys/kernel/btf/\n  vmlinux = pci_p2pdma_distance_many\n",
        ] {
            let (answer, read_of) = read(&format!("{SYMBOLS}{source}"));
            assert_eq!(answer, Some(true), "{source}");
            assert!(
                read_of.node("/proc/kallsyms").is_err(),
                "{source}: it takes 0.3 s to read"
            );
        }
    }

    #[test]
    fn nic_without_active_port_is_ranked_last() {
        const PORT: &str = "\n/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:08.0/0000:1a:00.0/infiniband/mlx5_0/ports/1/\n";
        let best = |state: &str| {
            let tree: Manifest = format!("{}{PORT}{state}", EXAMPLE).parse().unwrap();
            let topology = Topology::read(&tree);
            let card = topology.accelerators().next().unwrap().address;
            topology.ranking(card)[0].importer.name()
        };
        assert_eq!(best(""), "mlx5_0", "a state that cannot be read does not count");
        assert_eq!(best("  state = 4: ACTIVE\n"), "mlx5_0");
        assert_ne!(best("  state = 1: DOWN\n"), "mlx5_0");
    }
}
