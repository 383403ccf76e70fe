//! The seeds of fuzz targets, for `cargo xtask fuzz`: `corpus TARGET FOLDER` writes them as bytes,
//! `text TARGET FILE` prints an input as the text of a seed.

use std::error::Error;
use std::fs;
use std::path::Path;

use gaudi_fuzz::{TARGETS, Target, as_text, seeds};

const USAGE: &str = "usage: gaudi-fuzz corpus TARGET FOLDER | text TARGET FILE";

fn target(name: &str) -> Result<&'static Target, String> {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.ok_or_else(|| format!("{name} is not a target; fuzz/fuzz_targets has them"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["corpus", name, folder] => {
            fs::create_dir_all(folder)?;
            for seed in seeds(target(name)?)? {
                fs::write(Path::new(folder).join(seed.name), seed.bytes)?;
            }
        }
        ["text", name, file] => {
            let (ending, text) = as_text(target(name)?, &fs::read(file)?);
            println!("fuzz/seeds/{name}/NAME.{ending}:\n{text}");
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
