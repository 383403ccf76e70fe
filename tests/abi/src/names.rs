//! The names that a header defines, to check that none is missing. The compiler checks the values.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::headers::Found;

impl Found {
    /// Returns the header's text with its macros and without comments.
    fn bare(&self) -> Result<String, String> {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
        let output = Command::new(&compiler)
            .args(["-fpreprocessed", "-dD", "-E", "-P", "-x", "c"])
            .arg(self.dir.join(self.header.file()))
            .output()
            .map_err(|e| format!("cannot run {}: {e}", Path::new(&compiler).display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Returns every constant that a header of the driver defines or uses: the macros and enum members,
/// which are names in capitals with an underscore.
///
/// # Errors
/// The preprocessor's messages, or the reason why it did not start.
pub fn names(found: &Found) -> Result<BTreeSet<String>, String> {
    let text = found.bare()?;
    let constant = |word: &&str| {
        word.contains('_')
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && !word.contains(|c: char| c.is_ascii_lowercase())
    };
    Ok(words(&text).filter(constant).map(str::to_owned).collect())
}

/// Returns every field of the header's named structs and unions: the C type and the field's own
/// name, without the path through inner unions.
///
/// # Errors
/// As [`names`].
pub fn structs(found: &Found) -> Result<BTreeSet<(String, String)>, String> {
    let text = found.bare()?;
    let mut fields = BTreeSet::new();
    let mut inside: Option<String> = None;
    for line in text.lines() {
        if let Some(head) = line.strip_suffix(" {") {
            if head.starts_with("struct ") || head.starts_with("union ") {
                inside = Some(head.to_owned());
                continue;
            }
        }
        if line.starts_with("};") {
            inside = None;
        }
        let (Some(c_type), Some(declaration)) = (&inside, line.trim().strip_suffix(';')) else {
            continue;
        };
        let declaration = declaration.split('[').next().unwrap_or_default();
        // `} alloc` names a struct inside; its fields stand on lines of their own.
        if let Some(name) = words(declaration)
            .last()
            .filter(|_| !declaration.starts_with('}'))
        {
            fields.insert((c_type.clone(), name.to_owned()));
        }
    }
    Ok(fields)
}
