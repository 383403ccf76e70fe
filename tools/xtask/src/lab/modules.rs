//! Kernel modules with all that they depend on, in the order in which they load.
//!
//! Debian's packages carry no `modules.dep` (depmod writes it when a kernel is installed), so the
//! walk reads what depmod reads: the `.modinfo` section of each module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{Object as _, ObjectSection as _};

use crate::files;

/// A module as it goes into the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// With underscores, as the kernel names it.
    pub(crate) name: String,
    /// The file's place below the modules' folder, without the ending of its compression.
    pub(crate) path: String,
    pub(crate) content: Vec<u8>,
    depends: Vec<String>,
    aliases: Vec<String>,
}

/// All module files below a kernel's folder, by name.
fn module_files(folder: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.join("kernel")];
    while let Some(next) = folders.pop() {
        for path in files::children(&next)? {
            if path.is_dir() {
                folders.push(path);
            } else if let Some((stem, _)) = files::name(&path).split_once(".ko") {
                all.insert(plain(stem), path);
            }
        }
    }
    Ok(all)
}

/// The named modules of a kernel's folder and all that they need, dependencies first. `read`
/// removes the file's compression.
pub(super) fn closure(
    folder: &Path,
    names: &[String],
    read: impl Fn(&Path) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<Vec<Module>> {
    let files = module_files(folder)?;
    let load = |name: &str| {
        let file = files.get(name);
        let file = file.with_context(|| format!("{} holds no module {name}", folder.display()))?;
        let content = read(file)?;
        let info = info(&content).with_context(|| format!("cannot read {}", file.display()))?;
        let values = |wanted| info.iter().filter(move |(key, _)| key == wanted);
        let depends = values("depends").flat_map(|(_, value)| value.split(','));
        let place = file.strip_prefix(folder).unwrap_or(file).display().to_string();
        let (stem, _) = place.split_once(".ko").context("a module ends in .ko")?;
        Ok(Module {
            name: name.to_owned(),
            path: format!("{stem}.ko"),
            depends: depends.filter(|name| !name.is_empty()).map(plain).collect(),
            aliases: values("alias").map(|(_, value)| value.clone()).collect(),
            content,
        })
    };
    // A name with a question mark is wanted where the kernel has it: a library of a newer one may
    // have been a module.
    let is_there = |name: &String| match name.strip_suffix('?') {
        Some(name) => Some(plain(name)).filter(|name| files.contains_key(name)),
        None => Some(plain(name)),
    };
    let names: Vec<_> = names.iter().filter_map(is_there).collect();
    in_order(&names, load)
}

/// Depth first, each once. A circle is the kernel's error, not a reason to recurse for ever.
fn in_order(names: &[String], load: impl Fn(&str) -> anyhow::Result<Module>) -> anyhow::Result<Vec<Module>> {
    fn visit(
        name: &str,
        way: &mut Vec<String>,
        done: &mut Vec<Module>,
        load: &dyn Fn(&str) -> anyhow::Result<Module>,
    ) -> anyhow::Result<()> {
        if done.iter().any(|module| module.name == name) {
            return Ok(());
        }
        if way.iter().any(|above| above == name) {
            bail!("modules depend on one another: {} {name}", way.join(" "));
        }
        let module = load(name)?;
        way.push(name.to_owned());
        for needed in &module.depends {
            visit(needed, way, done, load)?;
        }
        way.pop();
        done.push(module);
        Ok(())
    }
    let mut done = Vec::new();
    for name in names {
        visit(name, &mut Vec::new(), &mut done, &load)?;
    }
    Ok(done)
}

/// `modules.dep` for modprobe: each path, then all that it needs, nearest first.
pub(crate) fn modules_dep(modules: &[Module]) -> String {
    let mut text = String::new();
    for module in modules {
        let mut needed: Vec<&Module> = Vec::new();
        let mut wanted: Vec<&String> = module.depends.iter().rev().collect();
        while let Some(name) = wanted.pop() {
            if let Some(found) = modules.iter().find(|other| other.name == *name) {
                // what is needed twice loads before both
                needed.retain(|other| other.name != found.name);
                needed.push(found);
                wanted.extend(found.depends.iter().rev());
            }
        }
        let needed: String = needed.iter().flat_map(|other| [" ", &other.path]).collect();
        text += &format!("{}:{needed}\n", module.path);
    }
    text
}

/// `modules.alias`, by which the kernel asks for a module that it needs (`crypto-crc32`,
/// `net-pf-…`).
pub(crate) fn modules_alias(modules: &[Module]) -> String {
    let lines = modules.iter().flat_map(|module| {
        let line = |alias: &String| format!("alias {alias} {}\n", module.name);
        module.aliases.iter().map(line)
    });
    lines.collect()
}

/// The kernel takes `-` for `_`.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Keys and values of a module's `.modinfo` section.
fn info(elf: &[u8]) -> anyhow::Result<Vec<(String, String)>> {
    let file = ElfFile64::<Endianness>::parse(elf).context("it is not a 64-bit module")?;
    let section = file
        .section_by_name(".modinfo")
        .context("it has no .modinfo section")?;
    let words = section.data()?.split(|byte| *byte == 0);
    let pair = |word: &[u8]| {
        let text = String::from_utf8_lossy(word);
        let (key, value) = text.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    Ok(words.filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn module(name: &str, depends: &[&str]) -> Module {
        Module {
            name: name.to_owned(),
            path: format!("kernel/{name}.ko"),
            content: Vec::new(),
            depends: depends.iter().map(|name| (*name).to_owned()).collect(),
            aliases: vec![format!("pci:{name}")],
        }
    }

    /// An ELF file with a string table and one more section.
    fn elf(name: &str, content: &[u8]) -> Vec<u8> {
        const HEAD: usize = 0x40;
        let names = format!("\0.shstrtab\0{name}\0");
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(HEAD, 0);
        file.extend(names.as_bytes());
        file.extend(content);
        let content_at = HEAD + names.len();
        let table = file.len() as u64;
        // Name, type (none, strings, bytes of the program), place and size (elf.h: `Elf64_Shdr`).
        let sections = [
            (0_u32, 0_u32, 0, 0),
            (1, 3, HEAD, names.len()),
            (11, 1, content_at, content.len()),
        ];
        for (name_at, kind, begin, size) in sections {
            let mut head = [0; HEAD];
            head[..4].copy_from_slice(&name_at.to_le_bytes());
            head[4..8].copy_from_slice(&kind.to_le_bytes());
            head[0x18..0x20].copy_from_slice(&(begin as u64).to_le_bytes());
            head[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            file.extend(head);
        }
        // Elf64_Ehdr: the table's place, the size of an entry, their number, the one with the
        // names.
        file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        for (at, number) in [(0x3a, 0x40_u16), (0x3c, 3), (0x3e, 1)] {
            file[at..at + 2].copy_from_slice(&number.to_le_bytes());
        }
        file
    }

    #[test]
    fn module_info_is_read_from_the_file() {
        let file = elf(".modinfo", b"license=GPL\0\0depends=drm,ib-core\0alias=pci:*\0");
        let seen = info(&file).expect("a module");
        assert!(
            seen.contains(&("depends".to_owned(), "drm,ib-core".to_owned())),
            "saw {seen:?}"
        );
        for end in 0..file.len() {
            let _ = info(&file[..end]); // a cut file is an error or less, never a panic
        }
        assert!(info(&elf(".text", b"")).is_err(), "no .modinfo, no module");
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let graph = |name: &str| {
            Ok(match name {
                "rxe" => module("rxe", &["ib_core", "tunnel"]),
                "uverbs" => module("uverbs", &["ib_core"]),
                "ib_core" => module("ib_core", &["base"]),
                other => module(other, &[]),
            })
        };
        let modules = in_order(&["rxe".to_owned(), "uverbs".to_owned()], graph).expect("an order");
        let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(
            names,
            ["base", "ib_core", "tunnel", "rxe", "uverbs"],
            "each after what it needs"
        );
        let dep = modules_dep(&modules);
        assert!(
            dep.contains("kernel/rxe.ko: kernel/ib_core.ko kernel/base.ko kernel/tunnel.ko\n"),
            "modprobe loads the line from its end: {dep}"
        );
        assert!(
            modules_alias(&modules).contains("alias pci:rxe rxe\n"),
            "an alias names its module"
        );
    }

    #[test]
    fn circular_dependency_is_an_error() {
        let circle = |name: &str| Ok(module(name, &[if name == "a" { "b" } else { "a" }]));
        let error = in_order(&["a".to_owned()], circle).expect_err("it must end");
        assert!(error.to_string().contains("a b a"), "the way is shown: {error}");
    }

    #[test]
    fn module_files_are_found_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().join("kernel/drivers");
        fs::create_dir_all(&place).expect("folders");
        fs::write(place.join("vfio-pci.ko.xz"), elf(".modinfo", b"depends=\0")).expect("a module");
        let read = |path: &Path| Ok(fs::read(path)?);
        let modules = closure(folder.path(), &["vfio-pci".to_owned()], read).expect("it is there");
        assert_eq!(
            (modules[0].name.as_str(), modules[0].path.as_str()),
            ("vfio_pci", "kernel/drivers/vfio-pci.ko"),
            "name and place"
        );
        let error =
            closure(folder.path(), &["mlx5_core".to_owned()], read).expect_err("there is no such file");
        assert!(
            error.to_string().contains("mlx5_core"),
            "the missing one is named: {error}"
        );
    }
}
