//! Options of a running kernel's configuration.

use super::tree::Tree;

/// An option of the kernel's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelOption {
    /// Whether the kernel has it.
    pub is_set: bool,
    /// The file that says so.
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

/// Whether the running kernel was built with an option, such as `CONFIG_PCI_P2PDMA`; `m` is not `y`.
///
/// # Errors
/// The files that would say it, none of which can be read.
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
